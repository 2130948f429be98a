// Pairs of optimizers, one in host memory and one on the fake device, for comparison.
#pragma once

#include "support/device_twins.h"
#include "support/fake/fake_backend.h"
#include "support/faulty_env.h"

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

// Transfers all files by pread and pwrite, and checks them for races with the device's queued work.
class WatchedEnv final : public FaultyEnv {
 public:
  fake::FakeBackend* backend = nullptr;
  int64_t pread(int fd, void* to, int64_t bytes, int64_t offset) override {
    if (backend) backend->host_touches(to, bytes, true);
    return FaultyEnv::pread(fd, to, bytes, offset);
  }
  int64_t pwrite(int fd, const void* from, int64_t bytes, int64_t offset) override {
    if (backend) backend->host_touches(from, bytes, false);
    return FaultyEnv::pwrite(fd, from, bytes, offset);
  }
};

// Twins whose device optimizer may have a disk.
struct Tiers {
  Tiers(Rng& rng, const Config& setup, lowtide::Memory memory, fake::FakeBackendOptions options = {},
        bool with_disk = true) {
    options.seed = rng.next();
    if (with_disk) memory.disk = disk.path();
    twins.emplace(rng, setup, memory, options, env);
    env.backend = &twins->fake;
  }

  TemporaryDirectory disk;
  WatchedEnv env;
  std::optional<FakeTwins> twins;
};

}  // namespace lowtide::testing
