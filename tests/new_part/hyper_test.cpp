// Claim: the hyper-parameter of docs/adding-a-hyper-parameter.md, added as the page says, is a member of Hyper with its
// default and range, has its effect in C++ and C, and stands in C's list of names.

#include "lowtide/lowtide.h"
#include "part.h"
#include "support/optimizer_case.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int kSteps = 6;

TEST(NewHyper, IsTwoFiles) { EXPECT_EQ(std::size(kPartFiles), 2u); }

// Lion moves a parameter by lr in each step, whatever the gradient.
double moved_by(double lr, double warmup) {
  double total = 0;
  for (int t = 1; t <= kSteps; ++t) total += t < warmup ? lr * t / warmup : lr;
  return total;
}

Config lion() {
  Config config;
  config.rule = "lion", config.state = "fp32", config.hyper = default_hyper("lion");
  return config;
}

TEST(NewHyper, HasItsDefaultAndRange) {
  EXPECT_EQ(Hyper{}.warmup, 1);
  EXPECT_EQ(default_hyper("lion").warmup, 1);
  for (const double bad : {0.0, -1.0, std::nan("")}) {
    Config config = lion();
    config.hyper.warmup = bad;
    EXPECT_NE(refusal([&] { make_optimizer(config); }).find("got warmup="), std::string::npos);
  }
}

TEST(NewHyper, HasItsEffect) {
  for (const double warmup : {1.0, 4.0}) {
    Config config = lion();
    config.hyper.lr = 0.01, config.hyper.warmup = warmup;
    Optimizer optimizer = make_optimizer(config);
    Tensor param(DType::kF32, {8}), grad(DType::kF32, {8});
    for (int64_t i = 0; i < 8; ++i) grad.set(i, 1);
    optimizer.add_param(0, param.view());
    const Gradient gradient = grad.gradient();
    for (int step = 0; step < kSteps; ++step) optimizer.step({&gradient, 1});
    for (int64_t i = 0; i < 8; ++i) EXPECT_NEAR(param.get(i), -moved_by(0.01, warmup), 1e-7) << warmup;
  }
}

TEST(NewHyper, IsKnownInC) {
  const char* const* names = nullptr;
  ASSERT_EQ(lt_hyper_names(&names), LT_OK);
  int found = 0, before = 0;
  for (; *names; ++names) ++before, found += std::string(*names) == "warmup";
  EXPECT_EQ(found, 1);
  EXPECT_GT(before, 10);

  lt_optimizer_options options = LT_OPTIMIZER_OPTIONS_INIT;
  options.rule = "lion";
  lt_optimizer* optimizer = nullptr;
  ASSERT_EQ(lt_optimizer_create(&options, &optimizer), LT_OK);
  int32_t group = -1;
  ASSERT_EQ(lt_optimizer_add_group(optimizer, nullptr, &group), LT_OK);
  double value = 0;
  EXPECT_EQ(lt_optimizer_get(optimizer, group, "warmup", &value), LT_OK);
  EXPECT_EQ(value, 1);
  EXPECT_EQ(lt_optimizer_set(optimizer, group, "warmup", 7), LT_OK);
  EXPECT_EQ(lt_optimizer_get(optimizer, group, "warmup", &value), LT_OK);
  EXPECT_EQ(value, 7);
  EXPECT_EQ(lt_optimizer_set(optimizer, group, "warmup", 0), LT_INVALID_ARGUMENT);
  lt_optimizer_destroy(optimizer);
}

}  // namespace
}  // namespace lowtide::testing
