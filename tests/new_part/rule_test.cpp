// Claim: the rule of docs/project/adding-a-rule.md, added as the page says, is there by its name, computes its
// reference with float32 state, and gives the same bits on all instruction sets and in every state format.

#include "part.h"
#include "support/optimizer_case.h"
#include "support/plainest_target.h"

namespace lowtide::testing {
namespace {
#include "reference.inc"
#include "support/test.h"

constexpr int kSteps = 20;
constexpr double kLr = 0.01;

struct Outcome {
  Tensor param{DType::kF32, {3, 302}};
  std::vector<std::byte> bytes;
};

// Calls each(gradient) before every step.
template <class Fn>
Outcome outcome_of(const std::string& state, const std::string& target, Fn&& each) {
  Rng rng(11);
  Outcome out;
  out.param.randomize(rng);
  Config config;
  config.rule = "accumulatedsign", config.state = state, config.target = target;
  config.hyper = default_hyper(config.rule);
  config.hyper.lr = kLr;
  Optimizer optimizer = make_optimizer(config);
  optimizer.add_param(0, out.param.view());
  Tensor grad(DType::kF32, out.param.sizes);
  for (int step = 0; step < kSteps; ++step) {
    for (int64_t i = 0; i < grad.numel; ++i) grad.set(i, rng.chance(0.1) ? 0 : rng.normal());
    each(grad);
    const Gradient gradient = grad.gradient();
    optimizer.step({&gradient, 1});
  }
  out.bytes = snapshot(optimizer, {&out.param});
  return out;
}

TEST(NewRule, IsKnownByItsName) {
  const std::vector<std::string> names = rule_names();
  EXPECT_EQ(std::count(names.begin(), names.end(), "accumulatedsign"), 1);
  EXPECT_EQ(std::size(kPartFiles), 4u) << "header, list, Python class and documents";
}

// Each step rounds a sum, a quotient, a product and a difference, all below 8 in magnitude: less than kSteps x 2^-20.
TEST(NewRule, ComputesItsReference) {
  Rng rng(11);
  Tensor start(DType::kF32, {3, 302});
  start.randomize(rng);
  std::vector<double> p, sum(static_cast<size_t>(start.numel));
  for (int64_t i = 0; i < start.numel; ++i) p.push_back(start.get(i));
  const Outcome got = outcome_of("fp32", "", [&](const Tensor& grad) {
    for (size_t i = 0; i < p.size(); ++i) p[i] = accumulatedsign(p[i], grad.get(int64_t(i)), sum[i], kLr);
  });
  double worst = 0;
  size_t moved = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    worst = std::max(worst, std::fabs(got.param.get(int64_t(i)) - p[i]));
    moved += std::fabs(start.get(int64_t(i)) - p[i]) > 1e-4;
  }
  EXPECT_LT(worst, kSteps * 0x1p-20);
  EXPECT_GT(moved, p.size() * 9 / 10) << "control: parameters move";
  figure("{} elements, {} steps: off by {} at most", p.size(), kSteps, worst);
}

TEST(NewRule, GivesTheSameBitsOnAllInstructionSets) {
  int compared = 0;
  for (const std::string& state : codec_names()) {
    const Outcome wanted = outcome_of(state, plainest_target(), [](const Tensor&) {});
    for (const std::string& target : cpu_targets()) {
      EXPECT_TRUE(outcome_of(state, target, [](const Tensor&) {}).bytes == wanted.bytes) << state << " " << target;
      ++compared;
    }
  }
  figure("{} of state format and instruction set, 0 bytes differ", compared);
}

}  // namespace
}  // namespace lowtide::testing
