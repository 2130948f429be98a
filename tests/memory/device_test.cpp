// Claims: on a device that runs everything late, in any legal order, an optimizer gives the bits of one in host memory
// under any budget of device memory, and never exceeds the budget; its queued work has no race; what the caller queues
// next on the same queue sees the finished step.
#include "support/fake_twins.h"
#include "lowtide/planning.h"
#include "memory/residency.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

using fake::FakeBackend;

fake::FakeBackendOptions fake_options(Rng& rng, int64_t drop_wait = -1, bool guards = false) {
  return {.seed = rng.next(), .drop_wait = drop_wait, .steps_pinned = true, .guards = guards};
}

// The queued work of all cases has no race. The later ones have a disk behind host memory.
TEST(Device, EveryBudgetGivesTheBitsOfTheHost) {
  Rng rng = seeded("optimizers on the fake device", 71);
  int64_t compared = 0, steps = 0, above = 0, borrowed = 0, demoted = 0, managed = 0;
  int64_t plans[2] = {}, refused[2] = {}, on_disk = 0;  // without and with a disk
  std::map<std::string, int64_t> streamed;
  const int trials[] = {400, std::max(20, share_of(360))};
  for (int trial = 0; trial < trials[0] + trials[1]; ++trial) {
    const bool disk = trial >= trials[0];
    const Config setup = random_setup(rng);
    lowtide::Memory memory{.chunk = rng.between(1, 4) * 4096};
    if (disk) {
      memory.device = rng.between(1, 10) * memory.chunk;
      memory.host = rng.between(1, 10) * memory.chunk;
      if (rng.chance(0.2)) memory.disk_limit = rng.between(0, 60) * memory.chunk;
    } else {
      memory.managed = rng.chance(0.15);
      if (!memory.managed && rng.chance(0.85)) memory.device = rng.between(1, 30) * 4096;
      memory.transfer = memory.managed ? "" : pick(rng, std::vector<std::string>{"copy", "hybrid", "zero_copy"});
    }
    Tiers tiers(rng, setup, memory, fake_options(rng, -1, rng.chance(0.5)), disk);
    FakeTwins& twins = *tiers.twins;
    Optimizer& optimizer = twins.on_device();
    for (int64_t n = rng.between(1, 6); n > 0; --n)
      twins.add(pick(rng, std::vector{DType::kF32, DType::kBF16, DType::kF16}), random_sizes(rng));
    const bool some = rng.chance(0.3);
    bool replanned = false;
    try {
      for (int step = 0; step < 8; ++step) {
        int64_t more = rng.chance(0.3) ? optimizer.prefetch(rng.between(0, 8) * 4096, twins.queue()) : 0;
        if (more > 0 && rng.chance(0.5)) more += optimizer.prefetch(rng.between(0, 8) * 4096, twins.queue());
        borrowed += more > 0;
        if (rng.chance(0.1)) demoted += optimizer.demote(rng.between(0, 10) * 4096) > 0, replanned = disk;
        twins.step(some ? 0.5 : 1);
        if (more > 0) optimizer.synchronize();  // gives back the borrowed memory
        const MemoryReport report = optimizer.report();
        above += memory.device >= 0 && report.device_bytes > memory.device && !replanned;
        above += disk && report.allocated_bytes > memory.host && !replanned;
        if (rng.chance(0.2)) {
          EXPECT_EQ(twins.differing(), 0) << "trial " << trial;
        }
        if (rng.chance(0.1)) {
          EXPECT_EQ(twins.differing(), 0) << "trial " << trial;  // from here on all parameters have state
          optimizer.offload();
          EXPECT_EQ(twins.differing(), 0) << "trial " << trial << ": read where it is";
          EXPECT_EQ(optimizer.report().device_bytes, 0);
          EXPECT_TRUE(!disk || optimizer.report().allocated_bytes <= memory.host);
          if (rng.chance(0.5)) optimizer.onload();
        }
        if (rng.chance(0.1)) twins.add(DType::kF32, random_sizes(rng));
      }
      optimizer.place_states();
    } catch (const Error& error) {
      EXPECT_TRUE(!disk || error.kind() == ErrorKind::kInvalidArgument) << error.what();
      expect_in(disk ? "budget" : "device memory", error.what());
      ++refused[disk];
      continue;
    }
    EXPECT_EQ(twins.differing(), 0) << "trial " << trial << " " << setup.rule << " " << setup.state;
    const MemoryReport report = optimizer.report();
    if (!disk) streamed[report.transfer] += report.moved_per_step > 0;
    managed += report.managed_bytes > 0;
    on_disk += report.disk_moved_per_step > 0;
    EXPECT_TRUE(disk || report.disk_bytes == 0);
    EXPECT_EQ(report.kept_bytes, 0);
    expect_no_race(twins.fake);
    ++plans[disk];
    compared += twins.compared();
    steps += twins.steps();
  }
  EXPECT_EQ(above, 0);
  for (const char* transfer : {"copy", "hybrid", "zero_copy"}) EXPECT_GT(streamed[transfer], 25) << transfer;
  EXPECT_GT(managed, 20);
  EXPECT_GT(borrowed, 50);
  EXPECT_GT(demoted, 50);
  EXPECT_LT(refused[0], 80);
  const auto all = static_cast<double>(plans[1]);  // three in ten of many have chunks on disk: less four deviations
  EXPECT_GT(static_cast<double>(on_disk), 0.3 * all - 4 * std::sqrt(0.3 * 0.7 * all));
  figure(
      "{} plans without a disk (streaming by copy {}, hybrid {}, zero_copy {}; {} managed, {} more refused) and {} "
      "with one ({} with chunks there, {} refused), {} steps ({} after reading ahead into borrowed memory), {} "
      "demotions: "
      "differing bytes 0 of {}, above a budget {}",
      plans[0], streamed["copy"], streamed["hybrid"], streamed["zero_copy"], managed, refused[0], plans[1], on_disk,
      refused[1], steps, borrowed, demoted, compared, above);
}

// On the virtual clock, consecutive steps take as long as forecast() predicts.
TEST(Device, StepsTakeAsLongAsPredicted) {
  Rng rng = seeded("seconds on the fake device", 78);
  double least = 1e9, most = 0;
  int64_t cases = 0, by_link = 0, by_slots = 0;
  while (cases < 60) {
    ForecastRequest request;
    request.options.rule = "adamw";
    request.options.memory.chunk = 4096;
    request.options.memory.device = rng.between(2, 40) * 4096;
    request.options.memory.transfer = "copy";
    PlannedGroup& group = request.groups.emplace_back();
    group.options.state = "fp32";
    for (int64_t n = rng.between(2, 5); n > 0; --n) group.params.push_back({{rng.between(10, 40), 512}});
    request.link_rate = 1e9;
    group.step_rate = std::exp2(static_cast<double>(rng.between(-3, 3))) * 1e9;
    const Forecast plan = forecast(request).total;
    if (!plan.fits || plan.moved_per_step == 0 || plan.slot_bytes < 2 * 4096) continue;

    fake::FakeBackendOptions options{.seed = rng.next(), .step_rate = group.step_rate, .link_rate = 1e9};
    Config setup{.state = "fp32", .hyper = default_hyper("adamw"), .nonfinite = NonFinite::kPropagate};
    FakeTwins twins(rng, setup, request.options.memory, options);
    for (const PlannedParam& param : group.params) twins.add(DType::kF32, param.sizes);
    const auto now = [&] {
      twins.on_device().synchronize();
      return twins.fake.fake().now();
    };
    twins.same_gradients = true;
    twins.step();
    const double begun = now();
    constexpr int kSteps = 6;
    for (int step = 0; step < kSteps; ++step) twins.step();
    const double ratio = (now() - begun) / (kSteps * plan.seconds);
    EXPECT_EQ(twins.differing(), 0);
    EXPECT_GT(ratio, 0.85);
    EXPECT_LT(ratio, 1.15) << plan.seconds << " step " << plan.step_seconds << " link " << plan.link_seconds
                           << " slots " << plan.slot_bytes / 4096;
    least = std::min(least, ratio), most = std::max(most, ratio);
    by_link += plan.link_seconds > plan.step_seconds, by_slots += plan.slot_bytes == 2 * 4096;
    ++cases;
  }
  EXPECT_GT(by_link, cases / 5);
  figure("{} plans (the link slower in {}, two slots in {}): measured / predicted {} to {}", cases, by_link, by_slots,
         least, most);
}

// Every wait is either needed (without it there is a race) or a no-op.
TEST(Device, EveryDroppedWaitIsCaught) {
  Rng rng = seeded("dropped waits", 72);
  int64_t dropped = 0, needed = 0, caught = 0, false_alarms = 0;
  for (int trial = 0; trial < 36; ++trial) {
    Config setup;
    do setup = random_setup(rng);
    while (rule_info(find_rule(setup.rule)).make_average_args);  // their steps compare weights in between
    // Half the steps search for non-finite gradients by themselves, half do not; the host waits for neither.
    setup.nonfinite = trial % 2 ? NonFinite::kPropagate : NonFinite::kSkip;
    const uint64_t seed = rng.next();
    lowtide::Memory memory{
        .chunk = 4096,
        .device = (1 + trial % 6) * 4096,
        .transfer = std::vector<std::string>{"copy", "hybrid", "zero_copy"}[static_cast<size_t>(trial / 6 % 3)]};
    const bool borrows = trial >= 18;
    int64_t waits = 1;
    for (int64_t drop = -1; drop < waits; ++drop) {
      Rng own(seed);
      FakeTwins twins(own, setup, memory, fake_options(own, drop, trial % 2 == 0));
      twins.add(DType::kF32, {3, 1500});
      twins.add(DType::kBF16, {2000});
      for (int step = 0; step < 4; ++step) {
        twins.step(step == 2 ? 0.5 : 1);
        if (borrows && step < 3) twins.on_device().prefetch((1 + step) * 4096, twins.queue());
      }
      const bool found = twins.differing() != 0 || !twins.fake.fake().race_checker().races().empty();
      if (drop < 0) {
        EXPECT_FALSE(found) << "control";
        waits = twins.fake.waits();
        continue;
      }
      ++dropped;
      const bool matters = twins.fake.dropped_mattered();
      needed += matters;
      caught += matters && found;
      if (matters && !found) ADD_FAILURE() << "trial " << trial << ", wait " << drop;
      false_alarms += !matters && found;
    }
  }
  EXPECT_GT(needed, 100);
  EXPECT_EQ(caught, needed);
  EXPECT_EQ(false_alarms, 0);
  figure("{} waits dropped, {} needed, caught {}, false alarms {}", dropped, needed, caught, false_alarms);
}

// Without a budget, state fills the device, then host memory; if both are full, an error changes nothing.
TEST(Device, WithoutABudgetWhatFitsStays) {
  Rng rng = seeded("no budget", 74);
  Config setup{.state = "fp32", .hyper = default_hyper("adamw")};
  int64_t streamed = 0, refused = 0, bytes = 0;
  struct Capacity {
    int64_t device, host;
  };
  for (const Capacity& has : {Capacity{1 << 30, 0}, Capacity{400 << 10, 5 << 20}, Capacity{400 << 10, 200 << 10}}) {
    lowtide::Memory memory{.chunk = 8 << 10};
    FakeTwins twins(rng, setup, memory, fake::FakeBackendOptions{rng.next(), -1, has.device, has.host});
    for (int i = 0; i < 4; ++i) twins.add(DType::kF32, {10, 1000});
    const int64_t used = twins.fake.used();
    try {
      for (int step = 0; step < 3; ++step) twins.step();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory) << error.what();
      EXPECT_EQ(twins.on_device().steps(0), 0);
      EXPECT_EQ(twins.fake.used(), used);
      const int64_t queues = twins.fake.queues();
      EXPECT_THROW(twins.on_device().place_states(), Error);
      EXPECT_EQ(twins.fake.queues(), queues);
      ++refused;
      continue;
    }
    EXPECT_EQ(twins.differing(), 0);
    streamed += twins.on_device().report().moved_per_step > 0;
    EXPECT_LE(twins.fake.device_peak(), has.device);
    expect_no_race(twins.fake);
    bytes += twins.compared();
  }
  EXPECT_EQ(streamed, 1);
  EXPECT_EQ(refused, 1);
  figure("streaming 1 of 2, differing bytes 0 of {}; refused for want of host memory 1/1", bytes);
}

// Their steps would race, because chunks are not stepped parameter by parameter.
TEST(Device, ParametersThatOverlapAreRefused) {
  auto backend = std::make_unique<FakeBackend>(fake::FakeBackendOptions{76});
  FakeBackend& fake = *backend;
  OptimizerOptions options{.rule = "adamw", .nonfinite = NonFinite::kPropagate};
  Optimizer optimizer = OptimizerEnv::make(options, system_env(), std::move(backend));
  const DeviceBytes memory(fake, MemoryKind::kDevice, 8192);
  optimizer.add_group({});
  optimizer.add_param(0, {memory.data(), DType::kF32, {512}, {}});
  optimizer.add_param(0, {memory.data() + 1024, DType::kF32, {512}, {}});
  const Gradient grad{memory.data() + 4096, DType::kF32, nullptr};
  expect_refusal([&] { optimizer.step(std::vector{grad, grad}); }, "make them one parameter");
  optimizer.step(std::vector{grad, Gradient{}});  // either may step alone
  EXPECT_EQ(optimizer.steps(0), 1);
  optimizer.synchronize();
}

// Managed memory never exceeds the free memory less a margin, in one piece or many, moved to the device or not.
TEST(Device, ManagedMemoryIsNeverMoreThanIsFree) {
  Rng rng = seeded("managed and free", 77);
  Config setup{.state = "fp32", .hyper = default_hyper("adamw")};
  for (const bool at_once : {true, false}) {
    fake::FakeBackendOptions options{.seed = rng.next(), .device_bytes = 1 << 20};
    lowtide::Memory memory{.chunk = 4096, .managed = true};
    FakeTwins twins(rng, setup, memory, options);
    const DeviceBytes ballast(twins.fake, MemoryKind::kDevice, 500 << 10);
    const int64_t room = twins.fake.limits().free - Residency::margin(1 << 20);
    int64_t most = 0;
    expect_refusal(
        [&] {
          for (int i = 0; i < 40; ++i) {
            twins.add(DType::kBF16, {at_once ? 100 : 5, 500});
            twins.on_device().place_states();
            most = twins.on_device().report().managed_bytes;
          }
        },
        "managed memory must not exceed");
    EXPECT_LE(most, room);
    EXPECT_EQ(most == 0, at_once);
  }
}

// If the driver does not report free memory, the budget is 7/8 of all memory, however often parameters are added.
TEST(Device, WithoutABudgetOrAWordOfWhatIsFree) {
  Rng rng = seeded("free unknown", 75);
  Config setup{.state = "fp32", .hyper = default_hyper("adamw")};
  constexpr int64_t kTotal = 512 << 10;
  lowtide::Memory memory{.chunk = 8 << 10};
  fake::FakeBackendOptions options{rng.next(), -1, int64_t{1} << 30, int64_t{1} << 30, kTotal};
  FakeTwins twins(rng, setup, memory, options);
  int64_t most = 0, moved = 0;
  for (int i = 0; i < 10; ++i) {
    twins.add(DType::kF32, {10, 1000});
    twins.step();
    most = std::max(most, twins.on_device().report().device_bytes);
    moved = twins.on_device().report().moved_per_step;
  }
  EXPECT_LE(most, kTotal / 8 * 7);
  EXPECT_GT(moved, 0);
  EXPECT_EQ(twins.differing(), 0);
  figure("{} bytes of {} at most", most, kTotal);
}

}  // namespace
}  // namespace lowtide::testing
