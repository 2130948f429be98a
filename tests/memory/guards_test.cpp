// Claims: steps that search their gradients on the device, and so are known to be taken or skipped only later, end in
// the bits, counts and errors of an optimizer in host memory, wherever state is and whichever gradients are not finite.
// So do ballots. Only calls that depend on a guard's result wait for it.
#include "support/fake_twins.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

using fake::FakeBackend;

fake::FakeBackendOptions guarding(Rng& rng) { return {.seed = rng.next(), .steps_pinned = true, .guards = true}; }

lowtide::Memory random_memory(Rng& rng) {
  lowtide::Memory memory{.chunk = rng.between(1, 3) * 4096};
  if (rng.chance(0.75)) memory.device = rng.between(3, 12) * memory.chunk;
  memory.transfer = pick(rng, std::vector<std::string>{"copy", "hybrid", "zero_copy"});
  return memory;
}

TEST(Guards, SkippedStepsAreUncounted) {
  Rng rng = seeded("guards", 91);
  int64_t compared = 0, steps = 0, spoiled = 0, skipped = 0, raised = 0;
  for (int trial = 0; trial < 150; ++trial) {
    Config setup = random_setup(rng, false);
    setup.nonfinite = static_cast<NonFinite>(trial % 3);
    if (setup.rule == "sgd") setup.hyper.dampening = 0.25;  // applies from the second step taken
    const fake::FakeBackendOptions options = guarding(rng);
    FakeTwins twins(rng, setup, random_memory(rng), options);
    for (int64_t n = rng.between(1, 5); n > 0; --n)
      twins.add(pick(rng, std::vector{DType::kF32, DType::kBF16, DType::kF16}), random_sizes(rng));
    twins.on_device().place_states();  // on the host they are allocated with the parameters
    bool spoils = false;
    twins.spoil = [&](Tensor& grad) {
      if (!spoils || grad.numel == 0 || !rng.chance(0.4)) return;
      grad.set(rng.below(grad.numel), pick(rng, std::vector<double>{NAN, INFINITY, -INFINITY}));
      ++spoiled;
    };
    twins.raises_later = setup.nonfinite == NonFinite::kRaise;
    for (int step = 0; step < 10; ++step, ++steps) {
      spoils = rng.chance(0.35);
      twins.step(0.8);
      if (twins.raises_later && rng.chance(0.3)) try {
          twins.on_device().synchronize();
        } catch (const Error& error) {
          EXPECT_NE(std::string(error.what()).find("the gradient of parameter"), std::string::npos) << error.what();
          ++twins.raised_there;
        }
      if (rng.chance(0.3)) {
        EXPECT_EQ(twins.on_device().report().skipped_steps, twins.on_host().report().skipped_steps);
        EXPECT_EQ(twins.on_device().report().steps, twins.on_host().report().steps);
      }
      if (rng.chance(0.2)) {
        EXPECT_EQ(twins.differing(), 0) << "trial " << trial << ", step " << step;
      }
    }
    EXPECT_EQ(twins.differing(), 0) << "trial " << trial;
    EXPECT_EQ(twins.on_device().report().steps, twins.on_host().report().steps);
    if (twins.raises_later) {
      try {
        twins.on_device().synchronize();
      } catch (const Error&) {
        ++twins.raised_there;
      }
      twins.on_device().synchronize();  // raises it once
      EXPECT_EQ(twins.raised_there, twins.raised_here);
      raised += twins.raised_there;
    } else {
      skipped += twins.on_device().report().skipped_steps;
    }
    expect_no_race(twins.fake);
    compared += twins.compared();
  }
  EXPECT_GT(skipped, 30);
  EXPECT_GT(raised, 30);
  figure("{} steps, {} gradients spoiled, {} steps skipped, {} errors one call late: differing bytes 0 of {}", steps,
         spoiled, skipped, raised, compared);
}

// Calls that do not depend on the result do not wait; the next step waits only for the search.
TEST(Guards, AStepIsPendingAndNothingIsWaitedFor) {
  Rng rng = seeded("pending", 92);
  Config setup{.hyper = default_hyper("adamw")};
  FakeTwins twins(rng, setup, {}, guarding(rng));
  twins.add(DType::kF32, {2000});
  twins.step();
  StepOptions options{.stream = twins.queue()};
  const Device::Event before = twins.fake.record(twins.queue());
  EXPECT_FALSE(twins.fake.has_happened(before)) << "of the first step, too";
  const StepResult result = twins.on_device().step(twins.last_gradients(), options);
  EXPECT_TRUE(result.pending);
  EXPECT_TRUE(result.applied);
  EXPECT_FALSE(twins.fake.has_happened(twins.fake.record(twins.queue())));
  options.assume_finite = true;
  EXPECT_FALSE(twins.on_device().step(twins.last_gradients(), options).pending);
  EXPECT_EQ(twins.on_device().steps(0), 3);
  twins.on_device().set_nonfinite(NonFinite::kPropagate);
  EXPECT_FALSE(twins.on_device().step(twins.last_gradients(), options).pending);
  twins.on_device().synchronize();
  figure("pending 1/1");
}

TEST(Guards, BallotsOfASkippedStepAreZeros) {
  Rng rng = seeded("guarded ballots", 93);
  int64_t differing = 0, bytes = 0, skipped = 0;
  for (int trial = 0; trial < 40; ++trial) {
    auto backend = std::make_unique<FakeBackend>(guarding(rng));
    FakeBackend& fake = *backend;
    OptimizerOptions options{.rule = "lion", .threads = 1, .memory = random_memory(rng)};
    Config setup{.rule = "lion", .hyper = default_hyper("lion")};
    Optimizer on_host = make_optimizer(setup);
    Optimizer on_device = OptimizerEnv::make(options, system_env(), std::move(backend));
    GroupOptions group{.hyper = setup.hyper, .min_quantized_numel = 0};
    on_device.add_group(group);
    void* const queue = fake.make_queue();
    Tensor param(DType::kF32, {7, 900}), grad(DType::kF32, {7, 900});
    param.randomize(rng);
    DeviceTensors tensors(fake, queue);
    void* const there = tensors.put(param);
    void* const grad_there = tensors.put(grad);
    on_host.add_param(0, param.view());
    on_device.add_param(0, {there, DType::kF32, param.sizes, {}});
    const int64_t signs = on_host.sign_count();
    std::vector<std::byte> bits(static_cast<size_t>(signs / 8)), presence(static_cast<size_t>(signs / 512));
    const DeviceBytes bits_there(fake, MemoryKind::kDevice, signs / 8),
        presence_there(fake, MemoryKind::kDevice, signs / 512);
    for (int step = 0; step < 5; ++step) {
      grad.randomize(rng);
      if (rng.chance(0.4)) grad.set(rng.below(grad.numel), NAN);
      tensors.set(grad_there, grad);
      StepOptions on_queue{.stream = queue};
      on_host.ballots(std::vector{grad.gradient()}, {bits.data(), presence.data(), nullptr});
      EXPECT_TRUE(on_device
                      .ballots(std::vector{Gradient{grad_there, DType::kF32, nullptr}},
                               {bits_there.data(), presence_there.data(), nullptr}, true, on_queue)
                      .pending);
      const auto compare = [&](const DeviceBytes& from, const std::vector<std::byte>& wanted) {
        std::vector<std::byte> got(wanted.size());
        fake.copy(queue, got.data(), from.data(), from.bytes());
        fake.host_wait(fake.record(queue));
        for (size_t i = 0; i < got.size(); ++i) differing += got[i] != wanted[i];
        bytes += from.bytes();
      };
      compare(bits_there, bits);
      compare(presence_there, presence);
    }
    EXPECT_EQ(on_device.steps(0), on_host.steps(0));
    skipped += on_device.report().skipped_steps;
    expect_no_race(fake);
  }
  EXPECT_EQ(differing, 0);
  EXPECT_GT(skipped, 20);
  figure("{} ballots skipped; differing bytes {} of {}", skipped, differing, bytes);
}

}  // namespace
}  // namespace lowtide::testing
