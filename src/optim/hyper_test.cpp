// Hyper-parameters: each rule refuses, by name, invalid values that it reads, and values that decide which states exist
// cannot change.
#include "optim/hyper.h"

#include "backend/catalog.h"
#include "lowtide/planning.h"
#include "optim/param_spec.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

std::string why_not(const std::string& rule, const Hyper& hyper) {
  return refusal([&] { make_group({.hyper = hyper}, find_rule(rule)); });
}

// Sets the hyper-parameter of that name.
void set(Hyper& hyper, const std::string& name, double value) {
  bool found = false;
  for_each_hyper(hyper, [&](const char* field, auto& member) {
    if (name == field) member = static_cast<std::remove_reference_t<decltype(member)>>(value), found = true;
  });
  ASSERT_TRUE(found) << name;
}

TEST(Hyper, DefaultsAreFine) {
  int cases = 0;
  for (const std::string& rule : rule_names()) make_group({.hyper = default_hyper(rule)}, find_rule(rule)), ++cases;
  figure("{} rules", cases);
}

TEST(Hyper, EveryBadNumberIsRefusedByName) {
  struct Bad {
    std::vector<const char*> names;
    std::vector<double> values;
  };
  const std::vector<Bad> all = {{{"lr", "weight_decay", "momentum", "alpha", "t_alpha", "t_beta3", "lr_decay",
                                  "initial_accumulator_value", "momentum_decay"},
                                 {-1, -1e-300, kNan, kInf, -kInf, 1e300}},
                                {{"beta1", "beta2", "beta3"}, {-0.1, 1, 2, kNan, kInf}},
                                {{"eps"}, {0, -1e-8, 1e-60, kNan, kInf, 1e300}},
                                {{"dampening"}, {kNan, kInf, 1e300}}};
  int refused = 0;
  for (const std::string& rule : rule_names())
    for (const Bad& bad : all)
      for (const char* name : bad.names)
        for (const double value : bad.values) {
          Hyper hyper = default_hyper(rule);
          set(hyper, name, value);
          const std::string said = why_not(rule, hyper);
          expect_in("got " + std::string(name) + "=", said);
          expect_in("wanted", said);
          ++refused;
        }
  figure("{} bad numbers refused by name", refused);
}

TEST(Hyper, WhatOneRuleCannotReadAnotherCan) {
  const auto with = [](const char* rule, const char* name, double value) {
    Hyper hyper = default_hyper(rule);
    set(hyper, name, value);
    return hyper;
  };
  expect_in("got alpha=1 for RMSprop", why_not("rmsprop", with("rmsprop", "alpha", 1)));
  make_group({.hyper = with("ademamix", "alpha", 8)}, find_rule("ademamix"));
  Hyper both = with("adamw", "amsgrad", 1);
  both.nesterov = true;
  expect_in("got amsgrad and nesterov for adamw", why_not("adamw", both));
  make_group({.hyper = both}, find_rule("lion"));  // Lion reads neither
  expect_in("got nesterov with momentum=0", why_not("sgd", with("sgd", "nesterov", 1)));
  Hyper damped = with("sgd", "nesterov", 1);
  damped.momentum = 0.9, damped.dampening = 0.1;
  expect_in("dampening=0.1 for sgd, wanted momentum > 0 and dampening = 0", why_not("sgd", damped));
  make_group({.hyper = with("adam", "nesterov", 1)}, find_rule("adam"));
  // Products that float32 cannot hold.
  Hyper large = with("ademamix", "lr", 1e38);
  large.weight_decay = 0, large.beta1 = 0;
  expect_in("got lr=1e+38 with alpha=5, wanted lr * alpha", why_not("ademamix", large));
  large.alpha = 1;
  make_group({.hyper = large}, find_rule("ademamix"));
}

// A group of one parameter whose codes have 4 bits if `state` says so. Adding it reveals whether the group is possible.
constexpr int64_t kElements = 512;
Optimizer group_of_one(const std::string& rule, const char* state, const Hyper& hyper,
                       const std::vector<int64_t>& sizes = {kElements}) {
  static float param[kElements + 1];
  Optimizer optimizer(OptimizerOptions{.rule = rule});
  optimizer.add_group({.hyper = hyper, .state = state, .min_quantized_numel = kElements});
  optimizer.add_param(0, {param, DType::kF32, sizes, {}});
  return optimizer;
}

// With 4 bits, a step of a signed average must not get lost: betas are at most 0.9, and Lion is refused.
TEST(Hyper, LongAveragesOfBothSignsAreRefusedIn4Bits) {
  const auto said = [](const std::string& rule, const char* state, const Hyper& hyper) {
    return refusal([&] { group_of_one(rule, state, hyper); });
  };
  const auto with = [](const char* rule, const char* name, double value) {
    Hyper hyper = default_hyper(rule);
    set(hyper, name, value);
    return hyper;
  };
  int refused = 0;
  const auto has = [&](const std::string& text, const char* part) {
    expect_in(part, text);
    expect_in("'dynamic8'", text);
    ++refused;
  };
  const char* const state = "dynamic4";
  has(said("lion", state, default_hyper("lion")), "for lion");
  has(said("lion", state, with("lion", "beta2", 0.5)), "for lion");
  has(said("ademamix", state, default_hyper("ademamix")), "beta of 0.9999 for its exp_avg_slow, wanted 0.9 at most");
  Hyper scheduled = default_hyper("ademamix");
  scheduled.t_beta3 = 1e6;  // beta3 begins at beta1
  has(said("ademamix", state, scheduled), "beta of 0.9999");
  for (const char* rule : {"adam", "adamw", "lamb"})
    has(said(rule, state, with(rule, "beta1", 0.95)), "beta of 0.95 for its exp_avg,");
  for (const char* rule : {"sgd", "lars", "rmsprop"})
    has(said(rule, state, with(rule, "momentum", 0.95)), "beta of 0.95 for its momentum_buffer,");
  has(said("rmsprop", state, with("rmsprop", "centered", 1)), "beta of 0.99 for its grad_avg,");
  // Short averages, and second moments and sums of any length, are accepted.
  for (const std::string rule : {"adam", "adamw", "lamb", "sgd", "lars", "rmsprop", "adagrad"})
    group_of_one(rule, state, default_hyper(rule));
  group_of_one("sgd", state, with("sgd", "momentum", 0.9));
  group_of_one("ademamix", state, with("ademamix", "beta3", 0.9));
  // Changed betas of an existing group are checked too.
  Optimizer optimizer = group_of_one("adam", state, default_hyper("adam"));
  has(refusal([&] { optimizer.set_hyper(0, with("adam", "beta1", 0.99)); }), "beta of 0.99");
  EXPECT_EQ(optimizer.hyper(0).beta1, 0.9);
  figure("{} groups refused by name", refused);
}

// Without parameters of 4-bit codes in the group, nothing is refused until one is added.
TEST(Hyper, LongAveragesOfParametersWithout4BitsAreFine) {
  Hyper slow = default_hyper("adam");
  slow.beta1 = 0.99;
  int fine = 0;
  const char* const state = "dynamic4";
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{kElements + 1}, {kElements - 2}, {kElements, 1}}) {
    Optimizer optimizer = group_of_one("adam", state, slow, sizes);
    optimizer.set_hyper(0, default_hyper("adam"));
    optimizer.set_hyper(0, slow);
    float param[kElements] = {};
    const auto add = [&] { optimizer.add_param(0, {param, DType::kF32, {kElements}, {}}); };
    expect_refusal(add, "beta of 0.99 for its exp_avg,");
    EXPECT_EQ(optimizer.param_count(), 1);
    group_of_one("lion", state, default_hyper("lion"), sizes);
    const PlannedGroup group{.options = {.hyper = slow, .state = state, .min_quantized_numel = kElements}};
    const auto planned = [&](std::vector<int64_t> of) {
      PlannedGroup with = group;
      with.params.push_back({std::move(of)});
      return forecast({.options = {.rule = "adam"}, .groups = {with}}).total.elements;
    };
    EXPECT_GT(planned(sizes), 0);
    expect_refusal([&] { planned({kElements}); }, "0.9 at most");
    ++fine;
  }
  figure("{} groups without codes of 4 bits take any beta", fine);
}

TEST(Hyper, WhatDecidesAboutStatesStaysOnceThereAreParameters) {
  struct Change {
    const char *rule, *name;
    double value;
    const char* becomes;
  };
  const Change changes[] = {
      {"adam", "amsgrad", 1, "adam_amsgrad"},           {"adamw", "amsgrad", 1, "adamw_amsgrad"},
      {"adam", "nesterov", 1, "adam_nesterov"},         {"adamw", "nesterov", 1, "adamw_nesterov"},
      {"rmsprop", "momentum", 0.9, "rmsprop_momentum"}, {"rmsprop", "centered", 1, "rmsprop_centered"}};
  int refused = 0;
  for (const Change& change : changes) {
    OptimizerOptions options{.rule = change.rule};
    Optimizer optimizer(options);
    optimizer.add_group({.hyper = default_hyper(change.rule)});
    const Hyper before = optimizer.hyper(0);
    Hyper after = before;
    set(after, change.name, change.value);
    optimizer.set_hyper(0, after);  // without parameters, as if set from the start
    optimizer.set_hyper(0, before);
    float param[4] = {1, 2, 3, 4};
    optimizer.add_param(0, {param, DType::kF32, {4}, {}});
    const std::string said = refusal([&] { optimizer.set_hyper(0, after); });
    expect_in("make " + std::string(change.becomes) + " out of " + change.rule, said);
    expect_in(change.name, said);
    Hyper lower = before;
    lower.lr = 1e-5;
    optimizer.set_hyper(0, lower);  // values that decide nothing may change
    EXPECT_EQ(optimizer.hyper(0).lr, 1e-5);
    ++refused;
  }
  figure("{} changes allowed before and refused after the first parameter", refused);
}

TEST(Hyper, StatesThatAParameterCanHaveAreThoseOfItsVariant) {
  OptimizerOptions options{.rule = "adam"};
  Optimizer optimizer(options);
  Hyper hyper = default_hyper("adam");
  optimizer.add_group({.hyper = hyper});
  hyper.amsgrad = true;
  optimizer.add_group({.hyper = hyper});
  float param[4] = {1, 2, 3, 4};
  for (const int group : {0, 1}) optimizer.add_param(group, {param, DType::kF32, {4}, {}}, false);
  for (const int64_t i : {0, 1}) {
    optimizer.allocate_state(i);
    ASSERT_EQ(optimizer.states_of(i).size(), static_cast<size_t>(2 + i));
    ASSERT_EQ(optimizer.state(i).size(), static_cast<size_t>(2 + i));
  }
  EXPECT_STREQ(optimizer.states_of(1)[2].name, "max_exp_avg_sq");
  EXPECT_TRUE(optimizer.states_of(1)[0].is_signed);
  EXPECT_FALSE(optimizer.states_of(1)[2].is_signed);
  options.rule = "sgd";
  Optimizer sgd(options);
  sgd.add_group({.hyper = default_hyper("sgd")});
  sgd.add_param(0, {param, DType::kF32, {4}, {}});
  EXPECT_TRUE(sgd.state(0).empty());
  EXPECT_EQ(sgd.states_of(0).size(), 1u) << "momentum may come later";
}

}  // namespace
}  // namespace lowtide::testing
