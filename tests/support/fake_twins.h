// Pairs of optimizers, one in host memory and one on the fake device, for comparison.
#pragma once

#include "support/device_twins.h"
#include "support/fake/fake_backend.h"

namespace lowtide::testing {

class FakeTwins : public Twins {
 public:
  FakeTwins(Rng& rng, const Config& setup, const lowtide::Memory& memory, const fake::FakeBackendOptions& options,
            Env& env = system_env())
      : FakeTwins(rng, setup, memory, new fake::FakeBackend(options), env) {}

  fake::FakeBackend& fake;  // the device optimizer's backend

 private:
  FakeTwins(Rng& rng, const Config& setup, const lowtide::Memory& memory, fake::FakeBackend* made, Env& env)
      : Twins(rng, setup, memory, std::unique_ptr<Backend>(made), {}, env), fake(*made) {}
};

}  // namespace lowtide::testing
