// A gradient with a NaN, an infinity or a magnitude of at least 2^62 anywhere prevents the step, and nothing changes.
#include "support/optimizer_case.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

void put_value(Tensor& tensor, int64_t i, double value) {
  if (tensor.dtype != DType::kF32 && std::isnan(value)) {
    const uint16_t nan = tensor.dtype == DType::kBF16 ? 0x7fc1 : 0xfe01;
    std::memcpy(tensor.data.data() + i * 2, &nan, 2);
  } else {
    tensor.set(i, value);
  }
}

// Three parameters: one with whole blocks, one with short rows, one small.
struct Model {
  std::vector<Tensor> params, grads;
  Optimizer optimizer;

  Model(const Config& config, DType g_dtype, Rng& rng) : optimizer(make_optimizer(config)) {
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1024}, {3, 300}, {17}}) {
      params.emplace_back(DType::kF32, sizes);
      grads.emplace_back(g_dtype, sizes);
    }
    for (Tensor& p : params) p.randomize(rng), optimizer.add_param(0, p.view());
    for (Tensor& g : grads) g.randomize(rng);
  }
  StepResult step(const StepOptions& options = {}) {
    std::vector<Gradient> gradients;
    for (const Tensor& g : grads) gradients.push_back(g.gradient());
    return optimizer.step(gradients, options);
  }
  std::vector<std::byte> bytes() const { return snapshot(optimizer, {&params[0], &params[1], &params[2]}); }
};

TEST(NonFinite, OneBadGradientAnywhereSkipsTheStep) {
  auto rng = seeded("nonfinite", 70);
  int64_t steps = 0;
  for (const std::string& target : cpu_targets())
    for (const DType g_dtype : kDTypes)
      for (const double bad : {kNan, kInf, -kInf, 0x1p62, -0x1p62}) {
        if (g_dtype == DType::kF16 && std::fabs(bad) == 0x1p62) continue;  // fp16 cannot hold this number
        Config config{.target = target, .threads = 2};
        Model model(config, g_dtype, rng);
        ASSERT_TRUE(model.step().applied);
        const std::vector<std::byte> before = model.bytes();
        int64_t skipped = 0;
        for (int64_t param = 0; param < 3; ++param) {
          Tensor& g = model.grads[static_cast<size_t>(param)];
          // Every place in a block, and in the short last block of its row.
          for (int64_t i = 0; i < std::min<int64_t>(g.numel, 600); ++i) {
            const float good = g.get(i);
            put_value(g, i, bad);
            const StepResult result = model.step();
            ASSERT_FALSE(result.applied) << target << " " << dtype_name(g_dtype) << " " << bad << " at " << i;
            ASSERT_EQ(result.nonfinite_param, param);
            ASSERT_EQ(model.optimizer.report().skipped_steps, ++skipped);
            g.set(i, good);
            ++steps;
          }
        }
        ASSERT_TRUE(model.bytes() == before) << "a skipped step changed something";
        EXPECT_EQ(model.optimizer.report().steps, 1);
        ASSERT_TRUE(model.step().applied) << "and the next good step is taken";
        ASSERT_FALSE(model.bytes() == before) << "control";
      }
  figure("{} steps with one bad gradient, {} skipped, 0 bytes changed", steps, steps);
}

TEST(NonFinite, NamesTheFirstParameterAndKnowsTheLimit) {
  auto rng = seeded("first", 71);
  Model model({}, DType::kF32, rng);
  model.grads[1].set(5, kInf);
  model.grads[2].set(0, kNan);
  EXPECT_EQ(model.step().nonfinite_param, 1);
  model.grads[1].set(5, std::nextafterf(0x1p62f, 0.f));
  EXPECT_EQ(model.step().nonfinite_param, 2);
  model.grads[2].set(0, 0);
  EXPECT_TRUE(model.step().applied) << "the largest float below 2^62 is a gradient";
  for (const Tensor& p : model.params)
    for (int64_t i = 0; i < p.numel; ++i) ASSERT_TRUE(std::isfinite(p.get(i)));
}

// The rule squares the scaled gradient, so the limit is 2^62 / |grad_scale|.
TEST(NonFinite, TheLimitFollowsTheGradientScale) {
  auto rng = seeded("scale", 74);
  int checked = 0;
  for (const std::string& target : cpu_targets())
    for (const double scale : {1024.0, -1024.0, 0x1p-10, 0x1p-100}) {
      Config config{.state = "fp32", .target = target};
      Model model(config, DType::kF32, rng);
      StepOptions options{.grad_scale = scale};
      const float limit = static_cast<float>(std::min(0x1p62 / std::fabs(scale), 0x1p127));
      if (limit < 0x1p127f) {
        model.grads[1].set(7, limit);
        EXPECT_FALSE(model.step(options).applied) << target << " scale " << scale;
      }
      model.grads[1].set(7, kNan);
      EXPECT_FALSE(model.step(options).applied) << target << " scale " << scale;
      model.grads[1].set(7, std::nextafterf(limit, 0.f));
      EXPECT_TRUE(model.step(options).applied) << target << " scale " << scale;
      for (const StateView& state : model.optimizer.state(1))
        for (int64_t i = 0; i < state.numel; ++i, ++checked)
          ASSERT_TRUE(std::isfinite(static_cast<const float*>(state.codes)[i])) << state.name << " scale " << scale;
    }
  figure("{} moments finite", checked);
}

TEST(NonFinite, RaisePolicyNamesTheParameterAndChangesNothing) {
  auto rng = seeded("raise", 72);
  Config config{.nonfinite = NonFinite::kRaise};
  Model model(config, DType::kBF16, rng);
  model.step();
  const std::vector<std::byte> before = model.bytes();
  put_value(model.grads[2], 3, kNan);
  expect_refusal([&] { model.step(); }, "parameter 2");
  EXPECT_TRUE(model.bytes() == before);
  EXPECT_EQ(model.optimizer.report().steps, 1);
}

TEST(NonFinite, PropagatePolicyAndCheckedGradientsAreNotLookedAt) {
  auto rng = seeded("propagate", 73);
  Config config{.nonfinite = NonFinite::kPropagate};
  Model propagate(config, DType::kF32, rng);
  propagate.grads[0].set(9, kNan);
  EXPECT_TRUE(propagate.step().applied);
  EXPECT_TRUE(std::isnan(propagate.params[0].get(9)));
  EXPECT_TRUE(std::isfinite(propagate.params[0].get(700))) << "another block";
  Model assumed({}, DType::kF32, rng);
  assumed.grads[0].set(9, kNan);
  StepOptions options{.assume_finite = true};
  EXPECT_TRUE(assumed.step(options).applied);
  EXPECT_TRUE(std::isnan(assumed.params[0].get(9)));
}

}  // namespace
}  // namespace lowtide::testing
