// Stochastic rounding as users see it: the states that it affects, and the inputs of its random bits.
#include "backend/cpu/cpu_backend.h"
#include "backend/random_keys.h"
#include "support/optimizer_case.h"
#include "support/step_case.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

// "auto" selects averages and sums; in bf16, whose codes are finer, sums and averages with a beta of at least 0.995.
TEST(Rounding, AutoTakesAverages) {
  struct Case {
    const char* rule;
    double beta1, beta2, beta3;
    uint32_t wanted, in_bf16;  // bit k: state k
  };
  const Case cases[] = {
      {"adamw", 0.9, 0.999, 0, 0b11, 0b10},
      {"adamw", 0.9, 0.995, 0, 0b11, 0b10},
      {"adamw", 0.9, 0.99, 0, 0b11, 0b00},
      {"adamw", 0, 0.99, 0, 0b10, 0b00},  // its first moment is no average
      {"adam", 0.999, 0.95, 0, 0b11, 0b01},
      {"lion", 0.9, 0.99, 0, 0b1, 0b0},
      {"lion", 0.9, 0.999, 0, 0b1, 0b1},
      {"adam_amsgrad", 0.9, 0.999, 0, 0b011, 0b010},  // a running maximum is no average
      {"adamw_nesterov", 0.9, 0.999, 0, 0b11, 0b10},
      {"ademamix", 0.9, 0.999, 0.9999, 0b111, 0b110},
      {"ademamix", 0.9, 0.99, 0.99, 0b111, 0b000},
      {"adagrad", 0.9, 0.999, 0, 0b1, 0b1},
      {"sgd", 0.9, 0.999, 0, 0b1, 0b0},
      {"lars", 0.9, 0.999, 0, 0b1, 0b0},
      {"rmsprop_centered_momentum", 0, 0, 0, 0b111, 0b000},
  };
  const int dynamic8 = find_codec("dynamic8"), float8 = find_codec("float8"), fp32 = find_codec("fp32"),
            bf16 = find_codec("bf16"), dynamic4 = find_codec("dynamic4");
  int right = 0;
  for (const Case& c : cases) {
    const auto named = [&](const RuleInfo& rule) { return std::string(rule.name) == c.rule; };
    const int rule = static_cast<int>(std::find_if(rules().begin(), rules().end(), named) - rules().begin());
    RuleInput h;
    h.beta1 = c.beta1, h.beta2 = c.beta2, h.beta3 = c.beta3, h.alpha = 0.99, h.momentum = 0.9;
    const uint32_t all = (1u << rule_info(rule).states) - 1, second = all & ~rule_info(rule).signed_mask;
    EXPECT_EQ(stochastic_states(rule, dynamic8, RoundingMode::kAuto, h), c.wanted) << c.rule << " " << c.beta2;
    EXPECT_EQ(stochastic_states(rule, bf16, RoundingMode::kAuto, h), c.in_bf16) << c.rule << " " << c.beta2;
    EXPECT_EQ(stochastic_states(rule, dynamic8, RoundingMode::kNearest, h), 0u);
    EXPECT_EQ(stochastic_states(rule, dynamic8, RoundingMode::kStochastic, h), all);
    EXPECT_EQ(stochastic_states(rule, float8, RoundingMode::kAuto, h), all);
    EXPECT_EQ(stochastic_states(rule, dynamic4, RoundingMode::kAuto, h), c.wanted | second);
    EXPECT_EQ(stochastic_states(rule, fp32, RoundingMode::kStochastic, h), 0u);
    ++right;
  }
  // AdEMAMix's slow average has the length that its schedule has reached.
  RuleInput h;
  h.beta1 = 0.9, h.beta2 = 0.95, h.beta3 = 0.9999, h.t_beta3 = 1000;
  h.t = 1;
  EXPECT_EQ(stochastic_states(find_rule("ademamix"), bf16, RoundingMode::kAuto, h), 0b000u);
  h.t = 999;
  EXPECT_EQ(stochastic_states(find_rule("ademamix"), bf16, RoundingMode::kAuto, h), 0b100u);
  figure("{} rules and betas as they should be", right);
}

TEST(Rounding, RefusesWhatThereIsNot) {
  Optimizer optimizer{OptimizerOptions{}};
  GroupOptions group{.rounding = "up"};
  EXPECT_THROW(optimizer.add_group(group), Error);
  group.rounding = "nearest", group.state = "float8";
  const std::string message = refusal([&] { optimizer.add_group(group); });
  expect_in("'nearest' with state 'float8'", message);
  group.rounding = "auto";
  EXPECT_EQ(optimizer.add_group(group), 0);
  EXPECT_THROW(optimizer.set_rounding(0, "nearest"), Error);
  EXPECT_THROW(optimizer.set_rounding(0, ""), Error);
  EXPECT_THROW(optimizer.set_rounding(1, "auto"), Error);
  optimizer.set_rounding(0, "stochastic");
  figure("5 refused: {}", message);
}

// Takes 12 AdamW steps of two parameters: `before` of them in one optimizer, the others in one that loads its file.
std::vector<std::byte> after_steps(const char* state, const char* rounding, uint64_t seed = 0, int before = 0,
                                   const std::string& file = "") {
  auto rng = Rng(70);
  Tensor a(DType::kF32, {70, 301}), b(DType::kBF16, {300, 256});
  a.randomize(rng), b.randomize(rng);
  const auto make = [&](uint64_t of) {
    Optimizer optimizer({.seed = of});
    optimizer.add_group({.state = state, .rounding = rounding});
    optimizer.add_param(0, a.view());
    optimizer.add_param(0, b.view());
    return optimizer;
  };
  Optimizer optimizer = make(seed);
  Tensor ga(DType::kF32, a.sizes), gb(DType::kBF16, b.sizes);
  for (int step = 0; step < 12; ++step) {
    if (before && step == before) {
      optimizer.save(file);
      optimizer = make(seed + 1);
      optimizer.load(file);
      optimizer.set_seed(seed);
    }
    ga.randomize(rng), gb.randomize(rng);
    const Gradient gradients[] = {ga.gradient(), gb.gradient()};
    optimizer.step(gradients);
  }
  return snapshot(optimizer, {&a, &b});
}

int64_t differing(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  EXPECT_EQ(a.size(), b.size());
  return differing_bytes(a.data(), b.data(), static_cast<int64_t>(std::min(a.size(), b.size())));
}

// Where state is and who steps make no difference: tests/golden.
TEST(Rounding, GivesTheSameBitsForTheSameSeedAlone) {
  const TemporaryDirectory folder;
  for (const char* state : {"dynamic8", "float8", "bf16"})
    for (const char* rounding : {"auto", "stochastic"}) {
      const std::vector<std::byte> wanted = after_steps(state, rounding);
      EXPECT_EQ(differing(after_steps(state, rounding, 0, 5, folder.path() + "/state"), wanted), 0)
          << state << " " << rounding << ": saved and loaded in between";
      EXPECT_GT(differing(after_steps(state, rounding, 1), wanted), 100) << state;
      if (std::string(state) != "float8") {
        EXPECT_GT(differing(after_steps(state, "nearest"), wanted), 100) << state;
      }
    }
}

// An item's elements may have indices up to and beyond 2^32: each gets the bits of its own index, by definition.
TEST(Rounding, IndicesGoOnBeyond32Bits) {
  auto rng = seeded("beyond 2^32", 71);
  constexpr int64_t kCarry = int64_t{1} << 32;
  int64_t compared = 0;
  for (const char* codec : {"bf16", "dynamic8", "float8"})
    for (const int64_t first : {kCarry - 512, kCarry - 100, 3 * kCarry - 256, kCarry + 7}) {
      if (first % 256 && std::string(codec) != "bf16") continue;  // parts begin at blocks
      StepCase whole(find_rule("adamw"), find_codec(codec), DType::kF32, DType::kF32, 1, 1024, rng);
      whole.stochastic = 0b11;
      whole.origin = {0, first, 5 * kCarry};
      for (const std::string& target : cpu_targets()) {
        // Step the same elements in separate parts, none of which crosses the carry.
        StepCase got = whole, parts = whole;
        const auto backend = cpu::make_backend(target);
        const StepItem item = got.item();
        backend->step({&item, 1}, 1, false, nullptr);
        const int64_t cut = std::clamp<int64_t>((first / kCarry + 1) * kCarry - first, 0, 1024) % 1024;
        for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, cut}, {cut, 1024}}) {
          if (begin == end) continue;
          const int64_t sizes[] = {1, end - begin};
          const Layout layout = Layout::make(sizes, {});
          StepItem part = parts.item();
          part.param_layout = part.grad_layout = &layout;
          part.param = parts.param.data() + begin * 4;
          part.grad = parts.grad.data() + begin * 4;
          part.origin.first_column = first + begin;
          for (int k = 0; k < 2; ++k) {
            part.codes[k] = parts.codes[k].data() + format_of(part.rule, part.codec, k).code_bytes(begin);
            if (part.scales[k]) part.scales[k] += begin / kBlockElements;
          }
          backend->step({&part, 1}, 1, false, nullptr);
        }
        EXPECT_EQ(testing::differing_bytes(got, parts), 0) << codec << " " << target << " from " << first;
        compared += got.bytes();
        if (first < kCarry) continue;
        // Control: without the bits above 32 the result differs.
        StepCase low = whole;
        low.origin.first_column = first % kCarry;
        const StepItem wrong = low.item();
        backend->step({&wrong, 1}, 1, false, nullptr);
        EXPECT_GT(testing::differing_bytes(got, low), 0) << codec;
      }
    }
  figure("{} bytes at indices around and beyond 2^32, 0 differ", compared);
}

}  // namespace
}  // namespace lowtide::testing
