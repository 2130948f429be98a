// Claim: the hyper-parameter of docs/project/adding-a-hyper-parameter.md, added as the page says, is a member of Hyper
// with its default and range, has its effect in C++ and C, and stands in C's list of names. The option of groups is a
// member of GroupOptions and of lt_group_options with its default, is refused, and has its effect in C++, C and a
// forecast.
#include <cstddef>

#include "lowtide/lowtide.h"
#include "lowtide/planning.h"
#include "part.h"
#include "support/optimizer_case.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int kSteps = 6;

TEST(NewHyper, IsTwoFiles) { EXPECT_EQ(std::size(kPartFiles), 2u + 5u) << "and an option of groups is five"; }

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

// The formats of a matrix and of a vector of as many elements.
std::vector<std::string> formats_of(const GroupOptions& group) {
  Optimizer optimizer(OptimizerOptions{});
  optimizer.add_group(group);
  Tensor matrix(DType::kF32, {64, 256}), vector(DType::kF32, {64 * 256});
  for (Tensor* const param : {&matrix, &vector}) {
    const int64_t number = optimizer.add_param(0, param->view());
    optimizer.allocate_state(number);
  }
  return {optimizer.state(0)[0].codec, optimizer.state(1)[0].codec};
}

TEST(NewGroupOption, HasItsDefaultEffectAndRefusal) {
  EXPECT_EQ(GroupOptions{}.min_quantized_ndim, 0);
  EXPECT_EQ(formats_of({}), (std::vector<std::string>{"dynamic8", "dynamic8"}));
  EXPECT_EQ(formats_of({.min_quantized_ndim = 2}), (std::vector<std::string>{"dynamic8", "fp32"}));
  EXPECT_EQ(formats_of({.min_quantized_ndim = 3}), (std::vector<std::string>{"fp32", "fp32"}));
  EXPECT_NE(refusal([] { formats_of({.min_quantized_ndim = -1}); }).find("got min_quantized_ndim=-1, wanted 0 or more"),
            std::string::npos);
}

TEST(NewGroupOption, IsPlannedWith) {
  const auto bytes = [](int64_t ndim) {
    ForecastRequest request{{}, {}};
    request.groups.push_back({{.min_quantized_ndim = ndim}, {{{64 * 256}, std::nullopt, DType::kF32}}});
    return forecast(request).total.state_bytes;
  };
  EXPECT_EQ(bytes(2), int64_t{64 * 256 * 8});
  EXPECT_LT(bytes(1), bytes(2) / 3);
}

TEST(NewGroupOption, IsKnownInC) {
  const auto format_of_vector = [](const lt_group_options& options) {
    lt_optimizer* optimizer = nullptr;
    EXPECT_EQ(lt_optimizer_create(nullptr, &optimizer), LT_OK);
    int32_t group = -1;
    EXPECT_EQ(lt_optimizer_add_group(optimizer, &options, &group), LT_OK) << lt_last_error();
    std::vector<float> values(64 * 256);
    const int64_t size = 64 * 256;
    const lt_tensor param = {values.data(), LT_F32, 1, &size, nullptr};
    int64_t number = -1;
    EXPECT_EQ(lt_optimizer_add_param(optimizer, group, &param, &number), LT_OK) << lt_last_error();
    EXPECT_EQ(lt_optimizer_allocate_state(optimizer, number), LT_OK);
    lt_state_view view = {};
    EXPECT_EQ(lt_optimizer_state(optimizer, number, 0, &view), LT_OK);
    const std::string codec = view.codec;
    lt_optimizer_destroy(optimizer);
    return codec;
  };
  lt_group_options options = LT_GROUP_OPTIONS_INIT;
  EXPECT_EQ(options.min_quantized_ndim, 0);
  EXPECT_EQ(format_of_vector(options), "dynamic8");
  options.min_quantized_ndim = 2;
  EXPECT_EQ(format_of_vector(options), "fp32");
  options.struct_size = offsetof(lt_group_options, min_quantized_ndim);
  EXPECT_EQ(format_of_vector(options), "dynamic8") << "a caller that was built before has the default";
}

}  // namespace
}  // namespace lowtide::testing
