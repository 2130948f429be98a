// Claims: under automatic residency, with random budgets, demotions and promotions between steps, an optimizer on a
// device gives the bits of one in host memory; state moves to the device after two steps and leaves it when memory gets
// short; memory that a framework's allocator hands out while its queue still uses it is touched only after that use.
#include "memory/residency.h"
#include "support/fake_twins.h"
#include "support/framework_cache.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

using fake::FakeBackend;
using fake::FakeBackendOptions;

const std::vector<std::string> kTransferModes = {"copy", "hybrid", "zero_copy"};

TEST(AutomaticResidency, RandomPressureChangesNoBit) {
  Rng rng = seeded("automatic residency", 81);
  int64_t compared = 0, promotions = 0, demotions = 0, borrowed = 0, asked = 0, steps = 0;
  // With fewer trials, single ones would decide how often state moves.
  const int trials = std::max(8, share_of(24));
  for (int trial = 0; trial < trials; ++trial) {
    FakeBackendOptions options{.seed = rng.next(), .steps_pinned = true, .guards = trial % 2 == 1};
    lowtide::Memory memory{.chunk = rng.between(1, 3) * 4096,
                           .transfer = kTransferModes[static_cast<size_t>(trial % 3)],
                           .automatic = true};
    Config setup = random_setup(rng);
    if (trial % 4 < 2) setup.rule = "adamw", setup.state = "dynamic8", setup.hyper = default_hyper("adamw");
    FakeTwins twins(rng, setup, memory, options);
    for (int i = 0; i < 5; ++i) twins.add(pick(rng, std::vector{DType::kF32, DType::kBF16}), random_sizes(rng));
    const int64_t margin = Residency::margin(twins.fake.limits().total);
    for (int step = 0; step < 200; ++step, ++steps) {
      // Free memory is plenty, some, or too little, for a while each.
      if (step % 25 == 0) twins.free_bytes = margin + rng.between(-1, 3) * margin / 2 + rng.between(0, 40) * 4096;
      if (rng.chance(0.05)) asked += twins.on_device().demote(rng.between(0, 60) * 4096) > 0;
      if (rng.chance(0.2)) borrowed += twins.on_device().prefetch(rng.between(0, 12) * 4096, twins.queue()) > 0;
      if (rng.chance(0.02)) twins.on_device().offload();
      twins.step(rng.chance(0.3) ? 0.6 : 1);
      if (rng.chance(0.05)) {
        EXPECT_EQ(twins.differing(), 0) << "trial " << trial << ", step " << step;
      }
    }
    EXPECT_EQ(twins.differing(), 0) << "trial " << trial;
    expect_no_race(twins.fake);
    const MemoryReport report = twins.on_device().report();
    promotions += report.promotions;
    demotions += report.demotions;
    compared += twins.compared();
  }
  EXPECT_GT(promotions, trials * 10 / 24);
  EXPECT_GT(demotions, trials * 10 / 24);
  EXPECT_GT(borrowed, trials * 100 / 24);
  figure("{} steps: {} promotions, {} demotions, {} of them asked for, {} readings ahead; differing bytes 0 of {}",
         steps, promotions, demotions, asked, borrowed, compared);
}

// State from before the first step is on the host until two steps have been taken, then on the device as far as there
// is room; under pressure it goes back.
TEST(AutomaticResidency, StateComesAfterTwoStepsAndGoesUnderPressure) {
  Rng rng = seeded("automatic residency, phases", 82);
  int64_t compared = 0;
  for (const std::string& transfer : kTransferModes) {
    FakeBackendOptions options{.seed = rng.next(), .device_bytes = 64 << 20, .steps_pinned = true};
    lowtide::Memory memory{.chunk = 64 << 10, .transfer = transfer, .automatic = true};
    Config setup{.state = "fp32", .hyper = default_hyper("adamw")};
    FakeTwins twins(rng, setup, memory, options);
    for (int i = 0; i < 4; ++i) twins.add(DType::kF32, {100, 1000});  // 3.2 MB of state in all
    const int64_t margin = Residency::margin(64 << 20), slots = transfer == "zero_copy" ? 0 : 4 * (64 << 10);
    const auto on_device = [&] { return twins.on_device().report().device_bytes; };
    const int64_t all = 4 * 100 * 1000 * 8;
    twins.on_device().place_states();
    twins.free_bytes = 2 * margin;
    twins.step();
    EXPECT_LE(on_device(), slots);
    EXPECT_EQ(twins.on_device().report().transfer, transfer);
    twins.step();
    EXPECT_GE(on_device(), all);  // this much is free: 3/4 of the margin
    EXPECT_EQ(twins.on_device().report().promotions, 1);
    EXPECT_EQ(twins.on_device().report().moved_per_step, 0);
    twins.free_bytes = margin - (1 << 20);  // 1 MiB and a quarter of the margin must leave
    twins.step();
    const int64_t left = on_device();
    EXPECT_LT(left, all);
    EXPECT_EQ(twins.on_device().report().demotions, 1);
    twins.free_bytes = 3 * margin;
    for (int i = 0; i < Residency::kQuietSteps - 1; ++i) {
      twins.step();
      EXPECT_LE(on_device(), left + slots) << "after " << i + 1 << " quiet steps";
    }
    twins.step();
    EXPECT_GE(on_device(), all);
    // A requested demotion frees what it reports.
    twins.on_device().synchronize();
    const int64_t before = on_device(), freed = twins.on_device().demote(1 << 20);
    EXPECT_GE(freed, 1 << 20);
    EXPECT_EQ(before - on_device(), freed);
    EXPECT_EQ(twins.on_device().demote(int64_t{1} << 40), before - freed);
    EXPECT_EQ(on_device(), 0);
    EXPECT_EQ(twins.on_device().demote(1), 0);
    twins.step();
    EXPECT_EQ(twins.differing(), 0);
    compared += twins.compared();
  }
  figure(
      "3 transfer modes: promoted after 2 steps, demoted under pressure, promoted again after {} quiet steps; "
      "differing bytes 0 of {}",
      Residency::kQuietSteps, compared);
}

// State that a step creates takes the free room, and host memory only for the rest, because pinned memory is scarce.
TEST(AutomaticResidency, NewStatePinsWhatDoesNotFit) {
  Rng rng = seeded("pinned memory", 88);
  const int64_t total = 64 << 20, margin = Residency::margin(total), chunk = 64 << 10, slots = 4 * chunk;
  const int64_t all = 4 * 100 * 1000 * 8;
  for (const std::string& transfer : kTransferModes)
    for (const int64_t room : {2 * all, all + slots, all / 2, int64_t{0}}) {
      FakeBackendOptions options{.seed = rng.next(), .device_bytes = total, .steps_pinned = true};
      lowtide::Memory memory{.chunk = chunk, .transfer = transfer, .automatic = true};
      Config setup{.state = "fp32", .hyper = default_hyper("adamw")};
      FakeTwins twins(rng, setup, memory, options);
      for (int i = 0; i < 4; ++i) twins.add(DType::kF32, {100, 1000});
      const auto step = [&] {
        twins.free_bytes = std::max<int64_t>(margin / 4 * 5 + room - twins.on_device().report().device_bytes, 0);
        twins.step();
      };
      for (int i = 0; i < 3; ++i) step();
      const bool fits = room >= all + slots;
      const int64_t pinned = fits ? 0 : all - std::max(room - slots, int64_t{0}) + 3 * chunk;
      EXPECT_LE(twins.fake.host_peak(), pinned) << transfer << ", room for " << room;
      EXPECT_LE(twins.on_device().report().device_bytes, std::max(room, slots)) << transfer;
      EXPECT_EQ(twins.on_device().report().moved_per_step == 0, fits) << transfer << ", room for " << room;
      EXPECT_EQ(twins.differing(), 0);
      expect_no_race(twins.fake);
      figure("{}: {} of {} bytes of state have room: at most {} pinned", transfer, std::min(room, all), all,
             twins.fake.host_peak());
    }
}

// Memory that is reported free cannot always be had; the rest starts on the host.
TEST(AutomaticResidency, NewStateGoesToTheHostWhereTheDeviceIsFullAfterAll) {
  Rng rng = seeded("full after all", 89);
  FakeBackendOptions options{.seed = rng.next(), .device_bytes = 6 << 20};
  lowtide::Memory memory{.chunk = 64 << 10, .automatic = true};
  Config setup{.state = "fp32", .hyper = default_hyper("adamw")};
  FakeTwins twins(rng, setup, memory, options);
  for (int i = 0; i < 4; ++i) twins.add(DType::kF32, {100, 1000});  // 3.2 MB of parameters and gradients, too
  twins.free_bytes = 60 << 20;
  for (int i = 0; i < 3; ++i) twins.step();
  const MemoryReport report = twins.on_device().report();
  EXPECT_GT(report.device_bytes, 1 << 20);
  EXPECT_GT(report.allocated_bytes, 0);
  EXPECT_EQ(twins.differing(), 0);
  expect_no_race(twins.fake);
}

// If a step cannot allocate its slots, it evicts resident state or uses fewer slots.
TEST(AutomaticResidency, AStepMakesRoomForItsSlots) {
  Rng rng = seeded("room for slots", 83);
  int64_t compared = 0, demotions = 0;
  for (const char* transfer : {"copy", "hybrid"})
    for (const int64_t left : {200 << 10, 70 << 10, 40 << 10, 10 << 10}) {  // of device memory, for slots of 32 KiB
      FakeBackendOptions options{.seed = rng.next(), .device_bytes = 4 << 20, .steps_pinned = true};
      lowtide::Memory memory{.chunk = 32 << 10, .transfer = transfer};
      const bool resident = left != 40 << 10;
      memory.device = (resident ? 20 : 3) * memory.chunk;
      Config setup{.state = "fp32", .hyper = default_hyper("adamw")};
      FakeTwins twins(rng, setup, memory, options);
      twins.add(DType::kF32, {100, 1000});  // 800 KB of state
      twins.on_device().place_states();
      const DeviceBytes ballast(twins.fake, MemoryKind::kDevice, twins.fake.limits().free - left);
      for (int i = 0; i < 3; ++i) twins.step();
      EXPECT_EQ(twins.differing(), 0);
      demotions += twins.on_device().report().demotions;
      expect_no_race(twins.fake);
      compared += twins.compared();
    }
  EXPECT_GE(demotions, 4);
  figure("{} demotions for slots; differing bytes 0 of {}", demotions, compared);
}

TEST(FrameworkAllocator, MemoryThatTheQueueStillUsesIsTouchedAfterThat) {
  Rng rng = seeded("framework allocator", 84);
  int64_t compared = 0, reused = 0, taken = 0, given_back = 0, borrowed = 0, refused = 0;
  for (int trial = 0; trial < 40; ++trial) {
    FakeBackendOptions options{rng.next()};
    options.steps_pinned = options.guards = true;
    auto backend = std::make_unique<FakeBackend>(options);
    FakeBackend& fake = *backend;
    Cache cache{fake};
    lowtide::Memory memory{.chunk = 4096};
    if (trial % 2)
      memory.automatic = true;
    else
      memory.device = 8 * 4096;
    memory.transfer = kTransferModes[static_cast<size_t>(trial / 2 % 3)];
    DeviceAllocator allocator{&cache, Cache::allocate, Cache::free};
    if (trial % 3) allocator.note_use = Cache::note_use;
    Config setup = random_setup(rng);
    cache.refuses = trial % 4 == 2;
    // The control: streaming state, so that slots are borrowed and returned under any seed.
    if (trial == 2) setup.rule = "adamw", setup.state = "fp32", setup.hyper = default_hyper("adamw");
    Twins twins(rng, setup, memory, std::move(backend), allocator);
    twins.add(DType::kF32, {5, 1000});
    twins.add(DType::kBF16, {3000});
    if (trial % 5 == 1) cache.fills_on = twins.queue();
    for (int step = 0; step < 6; ++step) {
      // At once, the caller's next activations reuse memory that the optimizer freed, on the caller's queue; a copy
      // into freed memory is queued.
      for (const Cache::Unused& given : cache.unused)
        if (cache.may_use(given)) cache.use(twins.queue(), given.memory);
      for (const int64_t bytes : {4096, 4096, 8192, 16384})
        cache.unused.push_back({cache.activation(twins.queue(), bytes), bytes});
      if (step > 0) borrowed += twins.on_device().prefetch(rng.between(step == 1 ? 4 : 0, 6) * 4096, twins.queue());
      twins.step();
      if (trial % 5 == 0) twins.on_device().demote(rng.between(0, 5) * 4096);
    }
    EXPECT_EQ(twins.differing(), 0);
    expect_no_race(fake);
    compared += twins.compared();
    reused += cache.reused;
    taken += cache.taken;
    given_back += cache.given_back;
    refused += cache.refused;
    EXPECT_EQ(cache.early, 0) << "trial " << trial;
  }
  EXPECT_GT(reused, 200);
  EXPECT_GT(given_back, 200);
  EXPECT_GT(refused, 0);
  figure(
      "{} blocks taken, {} of them in use by the queue, {} given back and used at once, {} bytes borrowed: differing "
      "bytes 0 of {}",
      taken, reused, given_back, borrowed, compared);
}

// The relevant queue is that of the step that brings state back, not of the previous step.
TEST(FrameworkAllocator, StateComesBackBehindTheQueueOfItsStep) {
  Rng rng = seeded("state that comes back", 85);
  int64_t reused = 0, steps = 0;
  for (int trial = 0; trial < 10; ++trial) {
    FakeBackendOptions options{rng.next()};
    options.steps_pinned = options.guards = true;
    auto backend = std::make_unique<FakeBackend>(options);
    FakeBackend& fake = *backend;
    Cache cache{fake};
    lowtide::Memory memory{.chunk = 4096};
    DeviceAllocator allocator{&cache, Cache::allocate, Cache::free};
    Config setup{.hyper = default_hyper("adamw")};
    Twins twins(rng, setup, memory, std::move(backend), allocator);
    twins.add(DType::kF32, {5, 1000});
    twins.step();
    void* const other = fake.make_queue();
    for (int step = 0; step < 3; ++step, ++steps) {
      twins.on_device().offload();
      fake.wait(other, fake.record(twins.queue()));
      for (int i = 0; i < 6; ++i) cache.unused.push_back({cache.activation(other, 4096 * 4), 4096 * 4});
      StepOptions there{.stream = step % 2 ? twins.queue() : other};
      if (step % 2) fake.wait(twins.queue(), fake.record(other));
      twins.on_device().step(twins.last_gradients(), there);
    }
    twins.on_device().synchronize();
    expect_no_race(fake);
    reused += cache.reused;
  }
  EXPECT_GT(reused, 30);
  figure("{} steps, {} blocks in use by the step's queue", steps, reused);
}

// Before the first step, the relevant queue is the one with which the optimizer was opened.
TEST(FrameworkAllocator, StateIsPlacedBehindTheQueueThatItWasOpenedWith) {
  Rng rng = seeded("state before the first step", 87);
  int64_t reused = 0;
  for (int trial = 0; trial < 10; ++trial) {
    auto backend = std::make_unique<FakeBackend>(FakeBackendOptions{rng.next()});
    FakeBackend& fake = *backend;
    Cache cache{fake};
    OptimizerOptions options{
        .threads = 1, .stream = fake.make_queue(), .allocator = {&cache, Cache::allocate, Cache::free}};
    options.memory.chunk = 4096;
    if (trial % 4 > 1) cache.fills_on = options.stream;
    Optimizer optimizer = OptimizerEnv::make(options, system_env(), std::move(backend));
    const DeviceBytes param(fake, MemoryKind::kDevice, 8000);
    GroupOptions group;
    if (trial % 2) group.memory = options.memory;
    optimizer.add_group(group);
    optimizer.add_param(0, {param.data(), DType::kF32, {2000}, {}});
    for (int i = 0; i < 6; ++i) cache.unused.push_back({cache.activation(options.stream, 16384), 16384});
    optimizer.place_states();
    fake.host_wait(fake.record(options.stream));
    expect_no_race(fake);
    reused += cache.reused;
  }
  EXPECT_GT(reused, 10);
  figure("{} blocks in use by the queue", reused);
}

// The forward pass comes between two steps of a bucket: only then does the optimizer see the memory left for state.
TEST(AutomaticResidency, BucketsOfOneIterationAreOneStep) {
  constexpr size_t kBuckets = 30;
  Rng rng = seeded("residency and buckets", 90);
  FakeBackendOptions options{.seed = rng.next(), .device_bytes = 64 << 20};
  lowtide::Memory memory{.chunk = 64 << 10, .automatic = true};
  Config setup{.state = "fp32", .hyper = default_hyper("adamw")};
  Twins twins(rng, setup, memory, std::make_unique<FakeBackend>(options));
  for (size_t i = 0; i < kBuckets; ++i) twins.add(DType::kF32, {10, 1000});
  twins.on_device().place_states();
  const int64_t margin = Residency::margin(options.device_bytes), all = kBuckets * 10 * 1000 * 8;
  const auto on_device = [&] { return twins.on_device().report().device_bytes; };
  const auto iterate = [&](int64_t free_bytes) {
    twins.free_bytes = free_bytes;
    for (size_t bucket = 0; bucket < kBuckets; ++bucket) twins.step_where([&](size_t i) { return i == bucket; });
  };
  iterate(2 * margin);
  EXPECT_EQ(twins.on_device().report().promotions, 0);
  iterate(2 * margin);
  EXPECT_EQ(twins.on_device().report().promotions, 1);
  EXPECT_GE(on_device(), all);
  iterate(margin - (1 << 20));
  EXPECT_LT(on_device(), all);
  for (int i = 0; i < Residency::kQuietSteps - 1; ++i) iterate(3 * margin);
  EXPECT_EQ(twins.on_device().report().promotions, 1);
  iterate(3 * margin);
  EXPECT_EQ(twins.on_device().report().promotions, 2);
  EXPECT_EQ(twins.differing(), 0);
}

// Memory that was free while state was on the host is no longer free when the state is back.
TEST(AutomaticResidency, StateThatComesBackIsNotCountedAsFreeToo) {
  Rng rng = seeded("free bytes and state that comes back", 86);
  FakeBackendOptions options{.seed = rng.next(), .device_bytes = int64_t{1} << 20};
  lowtide::Memory memory{.chunk = 4096, .automatic = true};
  Config setup{.hyper = default_hyper("adamw"), .min_quantized_numel = int64_t{1} << 40};
  FakeTwins twins(rng, setup, memory, options);
  twins.add(DType::kF32, {50, 1000});  // 400 000 bytes of state
  const int64_t margin = Residency::margin(options.device_bytes), room = margin + 200 * 1024;
  const auto step = [&] {
    twins.free_bytes = room - twins.on_device().report().device_bytes;
    twins.step();
  };
  int64_t most = 0;
  for (int i = 0; i < 60; ++i) {
    if (i >= 2) twins.on_device().offload();
    step();
    most = std::max(most, twins.on_device().report().device_bytes);
  }
  EXPECT_GT(most, 0);
  EXPECT_LE(most, room - margin);
  EXPECT_EQ(twins.differing(), 0);
  expect_no_race(twins.fake);
  figure("at most {} bytes on the device, of {}", most, room - margin);
}

}  // namespace
}  // namespace lowtide::testing
