// Claim: optimizers with parameters in device memory give the bits of the host under every budget of device memory.
#include "device/delayed_device.h"
#include "device/device_support.h"
#include "support/device_twins.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

// State lives on the device and in host memory, in later trials on a disk, too.
TEST(DeviceOptimizer, EveryBudgetGivesTheBitsOfTheHost) {
  LT_NEEDS_DEVICE();
  Rng rng = seeded("optimizers on a device", 81);
  const TemporaryDirectory disk;
  int64_t compared = 0, steps = 0, plans = 0, streamed = 0, managed = 0, on_disk = 0, above = 0, refused = 0;
  int64_t delays = 0;
  std::vector<std::string> transfers = {"", "copy"};
  if (TestDevice::get().backend->device()->steps_pinned()) transfers.insert(transfers.end(), {"hybrid", "zero_copy"});
  const int near = share_of(200), far = std::max(6, share_of(320));
  for (int trial = 0; trial < near + far; ++trial) {
    const Config setup = random_setup(rng);
    lowtide::Memory memory{.chunk = rng.between(1, 4) * 4096};
    if (trial >= near) {
      memory.device = rng.between(1, 10) * memory.chunk;
      memory.host = rng.between(1, 10) * memory.chunk;
      memory.disk = disk.path();
    } else {
      memory.managed = rng.chance(0.2);
      if (!memory.managed && rng.chance(0.85)) memory.device = rng.between(5, 30) * 4096;
      if (memory.device >= 0)
        memory.transfer = pick(rng, transfers);
      else
        memory.automatic = !memory.managed && rng.chance(0.5);
    }
    std::unique_ptr<Backend> backend = TestDevice::get().open();
    DelayedDevice* delayed = nullptr;
    if (trial % 2) {
      auto made = std::make_unique<DelayedDevice>(std::move(backend), rng.next());
      delayed = made.get();
      backend = std::move(made);
    }
    Twins twins(rng, setup, memory, std::move(backend));
    for (int64_t n = rng.between(1, 6); n > 0; --n)
      twins.add(pick(rng, std::vector{DType::kF32, DType::kBF16, DType::kF16}), random_sizes(rng));
    try {
      for (int step = 0; step < 6; ++step) {
        twins.step(rng.chance(0.3) ? 0.5 : 1);
        const MemoryReport report = twins.on_device().report();
        above += memory.device >= 0 && report.device_bytes > memory.device;
        // Pinned memory that is not aligned to pages takes one more page.
        above += memory.host >= 0 && report.allocated_bytes > memory.host + 4 * 4096;
        if (rng.chance(0.2)) {
          EXPECT_EQ(twins.differing(), 0) << "trial " << trial;
        }
        if (rng.chance(0.1)) twins.on_device().offload();
        if (rng.chance(0.1)) twins.add(DType::kF32, random_sizes(rng));
      }
      twins.on_device().place_states();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << error.what();
      EXPECT_GE(trial, near) << error.what();
      expect_in("budget", error.what());
      ++refused;
      continue;
    }
    EXPECT_EQ(twins.differing(), 0) << "trial " << trial << " " << setup.rule << " " << setup.state;
    const MemoryReport report = twins.on_device().report();
    streamed += trial < near && report.moved_per_step > 0;
    managed += report.managed_bytes > 0;
    on_disk += report.disk_moved_per_step > 0;
    if (delayed) delays += delayed->delays();
    ++plans;
    compared += twins.compared();
    steps += twins.steps();
  }
  EXPECT_EQ(above, 0);
  EXPECT_GE(streamed, near / 12);  // half of the formats stream little
  EXPECT_GE(managed, near / 15);
  EXPECT_GE(on_disk, far / 8);
  EXPECT_GT(delays, 8 * near);
  figure(
      "{} plans ({} streaming, {} managed, {} with chunks on disk; {} more refused), {} steps, queues delayed {} "
      "times: differing bytes 0 of {}, above the budget {}",
      plans, streamed, managed, on_disk, refused, steps, delays, compared, above);
}

TEST(DeviceOptimizer, RefusesTransfersThatTheDeviceCannotMake) {
  LT_NEEDS_DEVICE();
  if (TestDevice::get().backend->device()->steps_pinned()) GTEST_SKIP() << "the device makes all transfers";
  for (const std::string transfer : {"hybrid", "zero_copy"}) {
    OptimizerOptions options{.memory = {.chunk = 4096, .device = 1 << 16, .transfer = transfer}};
    expect_refusal([&] { OptimizerEnv::make(options, system_env(), TestDevice::get().open()); },
                   "transfer='" + transfer + "'");
  }
}

TEST(DeviceOptimizer, ClipsToTheBitsOfTheHost) {
  LT_NEEDS_DEVICE();
  const auto has_norms = [](int rule) { return rule_info(rule).norms; };
  const auto with_norms = std::ranges::count_if(tested_rules(), has_norms);
  if (with_norms == 0 || with_norms == std::ssize(tested_rules()))
    GTEST_SKIP() << "LOWTIDE_TEST_RULES names rules with norms alone, or none; a queued norm has to be tried with both";
  Rng rng = seeded("clipping on a device", 82);
  const int trials = std::max(2, share_of(40));
  int64_t compared = 0;
  for (int trial = 0; trial < trials; ++trial) {
    lowtide::Memory memory{.chunk = 4096};
    if (rng.chance(0.3)) memory.device = rng.between(5, 30) * 4096;
    Config setup = random_setup(rng);
    // In any share, a queued norm is infinite for a rule with norms and for one without.
    const bool first = trial < 2;
    while (first && rule_info(find_rule(setup.rule)).norms != (trial == 0)) setup = random_setup(rng);
    setup.nonfinite = rng.chance(0.7) || first ? NonFinite::kSkip : NonFinite::kPropagate;
    bool spoils = false;
    Twins twins(rng, setup, memory, TestDevice::get().open());
    for (int64_t n = rng.between(1, 6); n > 0; --n)
      twins.add(pick(rng, std::vector{DType::kF32, DType::kBF16, DType::kF16}), random_sizes(rng));
    if (setup.nonfinite == NonFinite::kSkip)
      twins.spoil = [&](Tensor& grad) {
        if (grad.numel && (rng.chance(0.1) || spoils))
          grad.set(0, grad.dtype == DType::kF32 && rng.chance(0.5) ? INFINITY : 0x1p100);
      };
    for (int step = 0; step < 4; ++step) {
      twins.max_norm = std::ldexp(1, static_cast<int>(rng.between(-20, 10)));
      twins.norm_scale = pick(rng, std::vector{1.0, 0x1p-30, -3.0});
      // The largest scale skips the step, whatever the norm and its scale: weights that overflow to infinity become
      // NaNs, whose bits differ between devices.
      twins.grad_scale = pick(rng, std::vector{1.0, 0.3, setup.nonfinite == NonFinite::kSkip ? 0x1p120 : 3.0});
      spoils = first && step == 1;
      twins.queues_clips = rng.chance(0.6) || spoils;
      twins.step(rng.chance(0.3) && !spoils ? 0.5 : 1);
    }
    EXPECT_EQ(twins.differing(), 0) << "trial " << trial;
    compared += twins.compared();
  }
  figure("{} trials, 0 of {} bytes differ", trials, compared);
}

// Refused as without a clip, because the device would only produce weights that are NaN.
TEST(DeviceOptimizer, RefusesScalesOfAClipThatAreNotFinite) {
  LT_NEEDS_DEVICE();
  Rng rng = seeded("scales of a clip", 83);
  Config setup = random_setup(rng);
  for (const double scale : {std::nan(""), HUGE_VAL, 1e39})
    for (const bool assume_finite : {false, true}) {
      Twins twins(rng, setup, {}, TestDevice::get().open());
      twins.add(DType::kF32, {64, 40});
      twins.step();
      StepOptions options{.stream = twins.queue()};
      options.clip = twins.on_device().queue_clip_grad_norm(twins.last_gradients(), 1, 2, nullptr, options);
      options.grad_scale = scale, options.assume_finite = assume_finite;
      expect_refusal([&] { twins.on_device().step(twins.last_gradients(), options); }, "grad_scale");
      EXPECT_EQ(twins.differing(), 0);
    }
}

}  // namespace
}  // namespace lowtide::testing
