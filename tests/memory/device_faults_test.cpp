// Claims: whichever device call fails (in a step with any transfer mode, while parameters are added, in reading ahead,
// or in moving state to the host and back), no queued work touches memory that has been freed or reused; state that
// must survive keeps every bit; the optimizer works on. Loading repairs a failed step.
#include "support/fake_twins.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

enum class At { kStep, kAdd, kOffload, kOnload, kRead, kPrefetch, kDemote };
constexpr const char* kNames[] = {"step", "add", "offload", "onload", "read", "prefetch", "demote"};

struct Outcome {
  bool failed = false, whole = false;
  int64_t compared = 0;
};

// Fails the n-th call of the operation, if it has one. step_first: takes another step before repairing a failed one.
Outcome run(At at, int64_t n, bool step_first, int64_t device_bytes, const std::string& on_transfer,
            const std::string& path) {
  Rng rng(9000 + static_cast<uint64_t>(n));
  Config setup{.rule = "adamw", .state = "bf16", .hyper = default_hyper("adamw")};
  setup.nonfinite = NonFinite::kPropagate;  // does not check gradients, which would wait
  lowtide::Memory memory{.chunk = 4096, .device = device_bytes, .transfer = on_transfer};
  fake::FakeBackendOptions options{.seed = rng.next(), .steps_pinned = true};
  FakeTwins twins(rng, setup, memory, options);
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
  const auto arm = [&] { twins.fake.fake().fail_at(n); };
  if (at == At::kStep)
    twins.before_device_step = arm;
  else
    arm();
  try {
    operation();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo) << error.what();
    outcome.failed = true;
  }
  twins.before_device_step = nullptr;
  twins.fake.fake().fail_at(0);
  if (outcome.failed && at == At::kStep) {
    // All chunks were stepped: an ordinary step, apart from the error.
    outcome.whole = !step_first && optimizer.report().steps == 3;
    if (outcome.whole) {
      EXPECT_EQ(twins.differing(), 0);
    }
    if (step_first) twins.step();  // the failed step may have left its slots in use
    twins.restore(path);
  }
  twins.step();
  EXPECT_EQ(twins.differing(), 0);
  for (int i = 0; i < 2; ++i) twins.step();
  EXPECT_EQ(twins.differing(), 0);
  optimizer.synchronize();
  EXPECT_LE(optimizer.report().device_bytes, device_bytes);
  expect_no_race(twins.fake);
  outcome.compared = twins.compared();
  return outcome;
}

TEST(DeviceFaults, AnyCallMayFail) {
  const TemporaryDirectory directory;
  int64_t compared = 0;
  for (const At at : {At::kStep, At::kAdd, At::kOffload, At::kOnload, At::kRead, At::kPrefetch, At::kDemote}) {
    int64_t faults = 0, wholes = 0, runs = 0;
    const auto search = [&](int64_t budget, const char* on_transfer) {
      // Some faults are silent (in reading ahead), so only twelve silent calls in a row end the search.
      for (int64_t n = 1, silent = 0; silent < 12; ++n) {
        SCOPED_TRACE(std::string(kNames[static_cast<int>(at)]) + ", call " + std::to_string(n) + ", budget " +
                     std::to_string(budget) + ", " + on_transfer);
        bool failed = false;
        for (const bool step_first : {false, true}) {
          if (step_first && at != At::kStep) continue;
          const Outcome outcome = run(at, n, step_first, budget, on_transfer, directory.file("state"));
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
    for (const int64_t budget : {int64_t{12288}, int64_t{20480}, int64_t{1} << 20}) search(budget, "copy");
    for (const char* on_transfer : {"hybrid", "zero_copy"}) search(12288, on_transfer);
    if (HasFailure()) return;
    EXPECT_GT(faults, 0) << kNames[static_cast<int>(at)];
    EXPECT_EQ(wholes > 0, at == At::kStep);
    figure("{}: {} calls failed ({} after all was done) in {} runs", kNames[static_cast<int>(at)], faults, wholes,
           runs);
  }
  figure("differing bytes 0 of {}", compared);
}

}  // namespace
}  // namespace lowtide::testing
