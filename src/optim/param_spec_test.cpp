// Claims: an optimizer and a plan accept the same groups and parameters and refuse others with the same words; the
// optimizer's state is what the spec describes.
#include "optim/param_spec.h"

#include "lowtide/planning.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

struct Case {
  std::string rule;
  GroupOptions group;
  DType dtype = DType::kF32;
  std::vector<int64_t> sizes;
  std::optional<WholeParam> whole;
};

std::vector<Hyper> hypers_of(const std::string& rule) {
  std::vector<Hyper> all(10, default_hyper(rule));
  all[1].momentum = 0.9;
  all[2].amsgrad = true;
  all[3].nesterov = all[3].amsgrad = true;
  all[4].momentum = 0.9, all[4].nesterov = all[4].centered = true;
  all[5].max_unorm = 0.1, all[5].momentum = 0.95;
  all[6].beta1 = 0.5, all[6].beta3 = 0.6, all[6].momentum = 0.5;
  all[7].beta2 = 1;
  all[8].alpha = 1.5;
  all[9].nesterov = true, all[9].momentum = 0;
  return all;
}

struct Shard {
  std::vector<int64_t> sizes;
  std::optional<WholeParam> whole;
};

std::vector<Shard> shards() {
  constexpr int64_t kHuge = int64_t{1} << 31;
  return {{{64, 256}, {}},
          {{3, 5, 7}, {}},
          {{6, 3}, {}},
          {{5}, {}},
          {{}, {}},
          {{0, 8}, {}},
          {{9000, 1}, {}},
          {{-1, 4}, {}},
          {{kHuge, kHuge}, {}},
          {{kHuge, kHuge, kHuge}, {}},
          {{64, 256}, WholeParam{{64, 256}}},
          {{16, 256}, WholeParam{{64, 256}}},
          {{16, 256}, WholeParam{{64, 256}, false, {48, 0}}},
          {{16, 256}, WholeParam{{64, 256}, false, {49, 0}}},
          {{16, 256}, WholeParam{{64, 256}, false, {1}}},
          {{16, 256}, WholeParam{{64, 256}, false, {-1, 0}}},
          {{64, 128}, WholeParam{{64, 256}}},
          {{64, 128}, WholeParam{{64, 256}, true, {0, 128}}},
          {{64, 8, 32}, WholeParam{{64, 8, 64}, true}},
          {{64, 8, 64}, WholeParam{{64, 8, 64}, true}},
          {{16, 256}, WholeParam{{8, 256}}},
          {{4096}, WholeParam{{8192}}},
          {{4096}, WholeParam{{8192}, true, {4096}}},
          {{4096}, WholeParam{{2, 4096}}}};
}

// Returns "" if the act is accepted.
template <class Fn>
std::string refusal_of(Fn&& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string optimizer_says(const Case& c, std::vector<StateView>* views = nullptr) {
  return refusal_of([&] {
    Optimizer optimizer(OptimizerOptions{.rule = c.rule, .threads = 1});
    const int group = optimizer.add_group(c.group);
    alignas(64) static float memory[64 * 512];  // for parameters with state
    optimizer.add_param(group, {memory, c.dtype, c.sizes, {}}, views != nullptr, c.whole);
    if (views) *views = optimizer.state(0);
  });
}

Forecasts plan_of(const Case& c) {
  ForecastRequest request;
  request.options.rule = c.rule;
  request.groups.push_back({c.group, {{c.sizes, c.whole, c.dtype}}});
  return forecast(request);
}

template <class Fn>
void for_each_case(Fn&& visit) {
  const std::vector<std::string> masters = {"", "residual16", "residual8", "stochastic", "none"};
  for (const std::string& rule : rule_names())
    for (const Hyper& hyper : hypers_of(rule))
      for (const std::string& state : codec_names())
        for (const char* rounding : {"auto", "nearest", "stochastic"})
          for (const std::string& master : masters)
            for (const DType dtype : {DType::kF32, DType::kBF16, static_cast<DType>(9)})
              for (const Shard& shard : shards())
                for (const int64_t least : {int64_t{0}, int64_t{4096}})
                  visit(Case{rule,
                             {.hyper = hyper,
                              .state = state,
                              .min_quantized_numel = least,
                              .rounding = rounding,
                              .master = master},
                             dtype,
                             shard.sizes,
                             shard.whole});
}

TEST(ParamSpec, OptimizerAndPlanTakeAndRefuseTheSame) {
  int64_t cases = 0, taken = 0, differ = 0;
  std::set<std::string> texts;
  for_each_case([&](const Case& c) {
    ++cases;
    // Masters and least sizes multiply similar cases: test a sixteenth of the product, spread over all of it.
    if (cases % 16 != (cases / 16) % 16 || !in_share(cases / 16)) return;
    const std::string made = optimizer_says(c), planned = refusal_of([&] { plan_of(c); });
    taken += made.empty();
    if (!made.empty()) texts.insert(made);
    if (made == planned) return;
    if (++differ <= 5) ADD_FAILURE() << c.rule << ": optimizer '" << made << "', plan '" << planned << "'";
  });
  EXPECT_EQ(differ, 0);
  EXPECT_GT(taken, 0);
  EXPECT_GT(texts.size(), 20u);
  figure("at most a sixteenth of {} cases: {} taken, the others refused with {} texts, {} differ", cases, taken,
         texts.size(), differ);
}

TEST(ParamSpec, SaysWhatTheOptimizerHas) {
  Rng rng = seeded("specs against optimizers", 20261122);
  int64_t compared = 0, arrays = 0;
  for_each_case([&](const Case& c) {
    if (!rng.chance(0.004)) return;
    std::vector<StateView> views;
    if (!optimizer_says(c).empty()) return;
    ASSERT_EQ(optimizer_says(c, &views), "");
    const ParamSpec spec = make_spec(make_group(c.group, find_rule(c.rule)), c.sizes, c.dtype, c.whole);
    ASSERT_EQ(views.size(), static_cast<size_t>(spec.arrays(spec.rule))) << c.rule;
    for (size_t k = 0; k < views.size(); ++k, ++arrays) {
      const StateView said = spec.view(spec.rule, static_cast<int>(k));
      EXPECT_STREQ(said.name, views[k].name);
      EXPECT_STREQ(said.codec, views[k].codec);
      EXPECT_EQ(said.code_bits, views[k].code_bits);
      EXPECT_EQ(said.rows, views[k].rows);
      EXPECT_EQ(said.scales_per_row, views[k].scales_per_row);
    }
    EXPECT_EQ(plan_of(c).total.state_bytes, spec.bytes(spec.rule)) << c.rule;
    ++compared;
  });
  EXPECT_GT(compared, 100);
  figure("{} specs, {} arrays", compared, arrays);
}

TEST(ParamSpec, BudgetsAreRefusedAlike) {
  const auto differ = [](const std::vector<GroupOptions>& groups) {
    ForecastRequest request;
    for (const GroupOptions& group : groups) request.groups.push_back({group, {}});
    const std::string planned = refusal_of([&] { forecast(request); });
    const std::string made = refusal_of([&] {
      Optimizer optimizer(OptimizerOptions{});
      for (const GroupOptions& group : groups) optimizer.add_group(group);
    });
    EXPECT_EQ(planned, made);
    return made;
  };
  const Memory own{.host = 1 << 20};
  EXPECT_EQ(differ({{.memory = own}, {.budget_of = 0}}), "");
  EXPECT_NE(differ({{.budget_of = 0}}).find("got budget_of=0 in group 0, wanted an earlier group"), std::string::npos);
  EXPECT_NE(differ({{}, {.budget_of = -2}}), "");
  EXPECT_NE(differ({{}, {.memory = own, .budget_of = 0}}).find("got a budget and budget_of=0"), std::string::npos);
  EXPECT_NE(differ({{.memory = Memory{.host = -5}}}), "");
  EXPECT_NE(differ({{.memory = Memory{.host = 1 << 20, .chunk = 5}}}), "");
}

}  // namespace
}  // namespace lowtide::testing
