// Claims: whichever device call, read, write or host allocation fails (in a step with any transfer mode, while
// parameters are added, in reading ahead, or in moving state to the host and back), no queued work touches memory that
// has been freed or reused; state that must survive keeps every bit; the optimizer works on. Loading repairs a failed
// step.
#include "core/buffer.h"
#include "support/fake_twins.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

enum class At { kStep, kAdd, kOffload, kOnload, kRead, kPrefetch, kDemote };
constexpr const char* kNames[] = {"step", "add", "offload", "onload", "read", "prefetch", "demote"};

struct Budget {
  int64_t device, host = -1;  // pages; host: with a disk behind it
  const char* transfer = "copy";
};

struct Outcome {
  bool failed = false, whole = false;
  int64_t compared = 0;
};

// Fails the operation's n-th call of a kind (kAny: of the device's), if it has one. step_first: takes another step
// before repairing a failed one.
Outcome run(At at, Call call, int64_t n, bool step_first, const Budget& budget, const std::string& path) {
  Rng rng(9000 + static_cast<uint64_t>(n));
  Config setup{.rule = "adamw", .state = "bf16", .hyper = default_hyper("adamw")};
  setup.nonfinite = NonFinite::kPropagate;  // does not check gradients, which would wait
  const bool on_disk = budget.host >= 0;
  lowtide::Memory memory{.chunk = kPageBytes, .device = budget.device * kPageBytes, .transfer = budget.transfer};
  if (on_disk) memory.host = budget.host * kPageBytes;
  Tiers tiers(rng, setup, memory, {.steps_pinned = !on_disk}, on_disk);
  FakeTwins& twins = *tiers.twins;
  Optimizer& optimizer = twins.on_device();
  twins.add(DType::kF32, {5, 900});
  twins.add(DType::kF32, {3000});
  for (int i = 0; i < 2; ++i) twins.step();
  if (at == At::kOnload) optimizer.offload();
  if (at == At::kAdd) twins.add(DType::kF32, {1200});

  const auto operation = [&] {
    std::vector<float> values(4500);
    switch (at) {
      case At::kStep:
        return twins.step();
      case At::kAdd:
        return optimizer.place_states();
      case At::kOffload:
        return optimizer.offload();
      case At::kOnload:
        return optimizer.onload();
      case At::kRead:
        return optimizer.export_state(0, 0, values.data());
      case At::kPrefetch:
        optimizer.prefetch(12288, twins.queue());
        return;
      case At::kDemote:
        optimizer.demote(12288);
        return;
    }
  };
  Outcome outcome;
  const auto arm = [&] {
    if (call == Call::kAny)
      twins.fake.fake().fail_at(n);
    else
      tiers.env.arm({call, n, false, EIO});
  };
  if (at == At::kStep)
    twins.before_device_step = arm;
  else
    arm();
  try {
    operation();
  } catch (const Error& error) {
    EXPECT_TRUE(error.kind() == ErrorKind::kIo || (call == Call::kMap && error.kind() == ErrorKind::kOutOfMemory))
        << error.what();
    outcome.failed = true;
  }
  twins.before_device_step = nullptr;
  twins.fake.fake().fail_at(0);
  tiers.env.disarm();
  if (outcome.failed && at == At::kStep) {
    // All chunks were stepped: an ordinary step, apart from the error.
    outcome.whole = !step_first && optimizer.report().steps == 3;
    if (outcome.whole) {
      EXPECT_EQ(twins.differing(), 0);
    }
    if (step_first) {  // slots may be in use, and pieces may have fallen behind
      twins.step();
      EXPECT_EQ(optimizer.report().kept_bytes, 0);
    }
    twins.restore(path);
  }
  twins.step();
  EXPECT_EQ(twins.differing(), 0);
  for (int i = 0; i < 2; ++i) twins.step();
  EXPECT_EQ(twins.differing(), 0);
  optimizer.synchronize();
  EXPECT_LE(optimizer.report().device_bytes, memory.device);
  expect_no_race(twins.fake);
  outcome.compared = twins.compared();
  return outcome;
}

TEST(DeviceFaults, AnyCallMayFail) {
  const TemporaryDirectory directory;
  int64_t compared = 0;
  for (const At at : {At::kStep, At::kAdd, At::kOffload, At::kOnload, At::kRead, At::kPrefetch, At::kDemote}) {
    const std::string name = kNames[static_cast<int>(at)];
    int64_t faults = 0, wholes = 0, runs = 0;
    const auto search = [&](Budget budget, Call call = Call::kAny) {
      const bool on_disk = budget.host >= 0;
      const int64_t every = on_disk && call == Call::kAny && at == At::kStep ? spread() : 1;
      // Some faults are silent (in reading ahead), so only twelve silent calls in a row end the search.
      for (int64_t n = 1, silent = 0; silent < 12; n += every) {
        if (on_disk) budget.device = n % 2 ? 3 : 5, budget.host = n % 3 ? 4 : 2;
        SCOPED_TRACE(name + ", call " + std::to_string(n) + " of kind " + std::to_string(static_cast<int>(call)) +
                     ", pages " + std::to_string(budget.device) + " and " + std::to_string(budget.host) + ", " +
                     budget.transfer);
        bool failed = false;
        for (const bool step_first : {false, true}) {
          if (step_first && (at != At::kStep || (on_disk && call != Call::kPread))) continue;
          const Outcome outcome = run(at, call, n, step_first, budget, directory.file("state"));
          failed = outcome.failed;
          faults += outcome.failed;
          wholes += outcome.whole;
          compared += outcome.compared;
          ++runs;
        }
        silent = failed ? 0 : silent + 1;
        if (HasFailure()) return;
      }
    };
    for (const int64_t pages : {3, 5, 256}) search({pages});
    for (const char* on_transfer : {"hybrid", "zero_copy"}) search({.device = 3, .transfer = on_transfer});
    for (const Call call : {Call::kAny, Call::kPread, Call::kPwrite, Call::kMap})
      if (at <= At::kOnload) search({.device = 3, .host = 4}, call);
    if (HasFailure()) return;
    EXPECT_GT(faults, 0) << name;
    EXPECT_EQ(wholes > 0, at == At::kStep);
    figure("{}: {} calls failed ({} after all was done) in {} runs", name, faults, wholes, runs);
  }
  figure("differing bytes 0 of {}", compared);
}

}  // namespace
}  // namespace lowtide::testing
