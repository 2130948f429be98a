// Rules with norms of whole parameters, through the optimizer: refusals and overflow. Instruction sets and budgets:
// tests/golden; steps that move nothing: rest_test.cpp; overlap: tests/layout.
#include "support/optimizer_case.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();

Config setup_of(const std::string& rule, double max_unorm = 0, double weight_decay = 0.1) {
  Config setup{.rule = rule, .hyper = default_hyper(rule)};
  setup.hyper.lr = 0.1;
  setup.hyper.max_unorm = max_unorm;
  setup.hyper.weight_decay = weight_decay;
  return setup;
}

struct Variant {
  const char* rule;
  double max_unorm;
};
constexpr Variant kVariants[] = {{"lamb", 0}, {"lamb", 0.1}, {"lars", 0}, {"lars", 0.1}};

// Several threads add the blocks of a large parameter, which has more than one request for norms covers, and each block
// counts: the norms equal those of a sum in double, and no bit depends on threads.
TEST(NormRules, CountEachBlockOfALargeParameter) {
  constexpr int64_t kRows = (1 << 16) + 3;
  constexpr double kLr = 0.1, kTrust = 0.5;
  Tensor first(DType::kF32, {kRows, 3}), grad(DType::kF32, {kRows, 3});
  auto rng = seeded("large parameters", 61);
  first.randomize(rng), grad.randomize(rng);
  double p_squares = 0, g_squares = 0;
  for (int64_t i = 0; i < first.numel; ++i) {
    p_squares += first.get(i) * first.get(i);
    g_squares += grad.get(i) * grad.get(i);
  }
  const double ratio = kTrust * std::sqrt(p_squares / g_squares);
  std::vector<std::byte> of_one;
  for (const int threads : {1, 2, 8})
    for (int again = 0; again < 4; ++again) {
      Tensor param = first;
      Config setup = setup_of("lars", 0, 0);
      setup.threads = threads;
      setup.hyper.lr = kLr;
      setup.hyper.trust_coefficient = kTrust;
      Optimizer optimizer = make_optimizer(setup, {&param});
      take_step(optimizer, grad);
      if (of_one.empty()) {
        of_one = param.data;
        for (int64_t i = 0; i < param.numel; ++i) {
          const double change = kLr * ratio * grad.get(i);
          // The change is rounded three times, and the sum once.
          const double bound = (4 * std::fabs(change) + std::fabs(first.get(i)) + std::fabs(change)) * 0x1p-24;
          ASSERT_NEAR(param.get(i), first.get(i) - change, bound) << i;
        }
      }
      EXPECT_EQ(param.data, of_one) << threads << " threads";
    }
}

// A parameter of zeros has no norm and moves like a rule without norms: LAMB takes a step of AdamW.
TEST(NormRules, ParametersOfZerosMove) {
  for (const double max_unorm : {0.0, 0.1}) {
    Tensor a(DType::kF32, {1000}), b(DType::kF32, {1000}), grad(DType::kF32, {1000});
    Rng rng(11);
    grad.randomize(rng);
    Config setup = setup_of("lamb", max_unorm);
    setup.state = "fp32";
    Optimizer lamb = make_optimizer(setup, {&a});
    setup.rule = "adamw";
    Optimizer adamw = make_optimizer(setup, {&b});
    take_step(lamb, grad), take_step(adamw, grad);
    for (int64_t i = 0; i < a.numel; ++i) {
      EXPECT_NE(a.get(i), 0);
      EXPECT_NEAR(a.get(i), b.get(i), 0.1 * 16 * 0x1p-24);
    }
  }
  figure("2 steps from zeros, as long as AdamW's");
}

// Their squares do not fit float32; nor does the ratio of the largest parameters to the smallest gradients.
TEST(NormRules, HugeAndTinyValuesStayFinite) {
  int64_t finite = 0, moved = 0;
  for (const Variant& variant : kVariants)
    for (const double p : {0x1p-140, 0x1p-60, 1.0, 0x1p60, 0x1.8p126})
      for (const double g : {0x1p-149, 0x1p-70, 1.0, 0x1p61}) {
        Tensor param(DType::kF32, {600}), grad(DType::kF32, {600});
        for (int64_t i = 0; i < 600; ++i) param.set(i, i % 3 ? p : -p), grad.set(i, i % 5 ? g : 0);
        const std::vector<std::byte> before = param.data;
        Config setup = setup_of(variant.rule, variant.max_unorm, 0);
        setup.hyper.eps = 1e-30;
        setup.hyper.trust_coefficient = 0.5;
        Optimizer optimizer = make_optimizer(setup, {&param});
        ASSERT_TRUE(take_step(optimizer, grad).applied);
        for (int64_t i = 0; i < 600; ++i) finite += std::fabs(param.get(i)) <= kLargest;
        moved += before != param.data;
      }
  const auto all = static_cast<int64_t>(std::size(kVariants)) * 5 * 4;
  EXPECT_EQ(finite, all * 600);
  EXPECT_GT(moved, all / 2);  // some gradients are too small to move their parameters
  figure("{} of {} parameters moved, {} elements finite", moved, all, finite);
}

// A non-finite value stays in its block, because a non-finite norm counts as none.
TEST(NormRules, NanPropagatesThroughItsBlockOnly) {
  for (const Variant& variant : kVariants) {
    Config setup = setup_of(variant.rule, variant.max_unorm);
    setup.nonfinite = NonFinite::kPropagate;
    Tensor param(DType::kF32, {2, 1024}), grad(DType::kF32, {2, 1024});
    Rng rng(12);
    param.randomize(rng), grad.randomize(rng);
    grad.set(300, std::nan(""));
    Optimizer optimizer = make_optimizer(setup, {&param});
    take_step(optimizer, grad), take_step(optimizer, grad);
    for (int64_t i = 0; i < param.numel; ++i)
      EXPECT_TRUE(std::isfinite(param.get(i)) || i / 256 == 1) << variant.rule << " " << i;
    EXPECT_TRUE(std::isnan(param.get(300)));
    setup.nonfinite = NonFinite::kSkip;
    Optimizer skips = make_optimizer(setup);
    Tensor other(DType::kF32, {2, 1024});
    skips.add_param(0, other.view());
    EXPECT_FALSE(take_step(skips, grad).applied);
    EXPECT_EQ(skips.steps(0), 0);
  }
  figure("4 steps with a NaN, 7 of 8 blocks finite; 4 steps skipped");
}

// Norms that need state read it once more; LARS without max_unorm does not.
TEST(NormRules, MoveWhatTheReportSays) {
  const TemporaryDirectory directory;
  for (const Variant& variant : kVariants) {
    Config setup = setup_of(variant.rule, variant.max_unorm);
    setup.state = "fp32";
    setup.memory = {3 * 65536, directory.path(), -1, 65536};
    Tensor param(DType::kF32, {256, 1024}), grad(DType::kF32, {256, 1024});
    Rng rng(14);
    param.randomize(rng), grad.randomize(rng);
    Optimizer optimizer = make_optimizer(setup, {&param});
    const auto moved = [&] { return optimizer.report().read_bytes + optimizer.report().written_bytes; };
    for (int step = 0; step < 2; ++step) take_step(optimizer, grad);
    const int64_t before = moved();
    for (int step = 0; step < 3; ++step) take_step(optimizer, grad);
    const int64_t each = (moved() - before) / 3, streamed = optimizer.report().disk_bytes;
    EXPECT_EQ(each, optimizer.report().moved_per_step) << variant.rule;
    const bool reads_twice = std::string(variant.rule) == "lamb" || variant.max_unorm > 0;
    EXPECT_EQ(each, (reads_twice ? 3 : 2) * streamed) << variant.rule;
    figure("{}{}: {} times what is on disk moves in a step", variant.rule, variant.max_unorm > 0 ? ", max_unorm" : "",
           static_cast<double>(each) / static_cast<double>(streamed));
  }
}

TEST(NormRules, WhatCannotBeIsRefusedByName) {
  Tensor param(DType::kF32, {40, 300}), grad(DType::kF32, {40, 300});
  int refused = 0;
  const auto says = [&](const std::string& message, const std::string& wanted) {
    expect_in(wanted, message);
    figure("{}", message);
    ++refused;
  };
  for (const char* rule : {"lamb", "lars"}) {
    Optimizer optimizer = make_optimizer(setup_of(rule));
    says(refusal([&] { optimizer.add_param(0, param.view(), true, WholeParam{{80, 300}}); }), "shard");
    says(refusal([&] { optimizer.add_param(0, param.view(), true, WholeParam{{40, 300}, true}); }), "shard");
    EXPECT_EQ(optimizer.param_count(), 0);
    optimizer.add_param(0, param.view(), true, WholeParam{{40, 300}});  // replicated
    std::vector<std::byte> bits(1 << 12), presence(1 << 8);
    const Gradient gradient = grad.gradient();
    says(refusal([&] { optimizer.ballots({&gradient, 1}, {bits.data(), presence.data(), nullptr}); }), rule);
    for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
      Hyper h = default_hyper(rule);
      h.max_unorm = bad;
      says(refusal([&] { optimizer.set_hyper(0, h); }), "max_unorm");
      h = default_hyper(rule);
      h.trust_coefficient = bad;
      says(refusal([&] { optimizer.set_hyper(0, h); }), "trust_coefficient");
    }
  }
  Config nesterov = setup_of("lars");
  nesterov.hyper.nesterov = true, nesterov.hyper.momentum = 0;
  says(refusal([&] { make_optimizer(nesterov); }), "nesterov");
  figure("{} refused", refused);
}

// LARS's momentum and max_unorm may change between steps: the buffer comes with the first momentum, and stays.
TEST(NormRules, LarsMayChangeItsOptions) {
  Tensor param(DType::kF32, {40, 300}), grad(DType::kF32, {40, 300});
  Rng rng(15);
  param.randomize(rng), grad.randomize(rng);
  Config setup = setup_of("lars");
  setup.hyper.momentum = 0;
  Optimizer optimizer = make_optimizer(setup, {&param});
  std::vector<size_t> states;
  for (const auto& [momentum, max_unorm] : {std::pair{0.0, 0.0}, {0.0, 0.1}, {0.9, 0.1}, {0.9, 0.0}, {0.0, 0.0}}) {
    setup.hyper.momentum = momentum, setup.hyper.max_unorm = max_unorm;
    optimizer.set_hyper(0, setup.hyper);
    const std::vector<std::byte> before = param.data;
    EXPECT_TRUE(take_step(optimizer, grad).applied);
    EXPECT_NE(param.data, before);
    states.push_back(optimizer.state(0).size());
  }
  EXPECT_EQ(states, (std::vector<size_t>{0, 0, 1, 1, 1}));
  EXPECT_EQ(optimizer.steps(0), 5);
  figure("5 steps, options changed before each");
}

}  // namespace
}  // namespace lowtide::testing
