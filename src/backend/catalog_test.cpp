// Tests which rule runs for every user-visible rule and every combination of options.
#include "backend/catalog.h"

#include "lowtide/optimizer.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

std::string name_of(int rule) { return rule_info(rule).name; }

TEST(Catalog, EveryVariantIsTheRuleThatItsOptionsSay) {
  std::set<std::string> reached;
  int cases = 0, refused = 0;
  for (const std::string& family : rule_names())
    for (int bits = 0; bits < 32; ++bits, ++cases) {
      Hyper variant = default_hyper(family);
      variant.momentum = bits & 1 ? 0.9 : 0;
      variant.nesterov = bits & 2, variant.amsgrad = bits & 4, variant.centered = bits & 8;
      variant.max_unorm = bits & 16 ? 0.1 : 0;
      const bool adam = family == "adam" || family == "adamw";
      if (adam && variant.amsgrad && variant.nesterov) {
        const std::string said = rule_info(find_rule(family)).refusal(variant);
        expect_in("got amsgrad and nesterov for " + family + ", wanted one of them", said);
        ++refused;
        continue;
      }
      std::string wanted = family;  // spells out the family's options, in the order of the names
      if (adam) wanted += variant.amsgrad ? "_amsgrad" : variant.nesterov ? "_nesterov" : "";
      if (family == "sgd" && variant.momentum == 0) wanted += "_plain";
      if (family == "lars") wanted += variant.momentum == 0 ? "_plain" : variant.max_unorm > 0 ? "_clipped" : "";
      if (family == "rmsprop")
        wanted += std::string(variant.centered ? "_centered" : "") + (variant.momentum > 0 ? "_momentum" : "");
      EXPECT_EQ(name_of(effective_rule(find_rule(family), variant)), wanted);
      reached.insert(wanted);
    }
  EXPECT_EQ(reached.size(), rules().size()) << "a rule of rules.def that no options lead to";
  figure("{} combinations: {} rules, all of rules.def; {} refused", cases, reached.size(), refused);
}

// The names of states are part of checkpoints and state dicts; tests/golden/list.txt and docs/rules.md list them.
TEST(Catalog, VariantsHaveTheStatesOfTheirFamilyFirst) {
  std::map<std::string, bool> is_signed;  // by state name, in any rule
  int states = 0;
  for (const RuleInfo& rule : rules()) {
    const RuleInfo& family = rules()[static_cast<size_t>(rule.family)];
    const auto shared = static_cast<std::ptrdiff_t>(std::min(rule.state_names.size(), family.state_names.size()));
    EXPECT_EQ(rule.state_names.size(), static_cast<size_t>(rule.states)) << rule.name;
    EXPECT_TRUE(std::equal(rule.state_names.begin(), rule.state_names.begin() + shared, family.state_names.begin(),
                           [](const char* a, const char* b) { return std::string(a) == b; }))
        << rule.name;
    for (int k = 0; k < rule.states; ++k, ++states) {
      const bool here = rule.signed_mask >> k & 1;
      const auto [at, fresh] = is_signed.emplace(rule.state_names[static_cast<size_t>(k)], here);
      EXPECT_EQ(at->second, here) << rule.name << ": " << at->first << " is another thing in another rule";
    }
  }
  for (const char* square : {"exp_avg_sq", "max_exp_avg_sq", "sum", "square_avg"}) EXPECT_FALSE(is_signed.at(square));
  figure("{} rules, {} states, {} names", rules().size(), states, is_signed.size());
}

// -DLOWTIDE_RULES finds a variant's family by its name (cmake/rules.cmake).
TEST(Catalog, VariantsAreCalledByTheirFamily) {
  for (const RuleInfo& rule : rules()) {
    const std::string name = rule.name;
    EXPECT_EQ(rules()[static_cast<size_t>(rule.family)].name, name.substr(0, name.find('_')));
  }
}

TEST(Catalog, VariantsAreNotNames) {
  for (const char* name : {"sgd_plain", "adam_amsgrad", "rmsprop_centered", "nadam", "ADAM", ""}) {
    expect_refusal([&] { find_rule(name); }, "got rule '" + std::string(name) + "', wanted one of: adam, adamw, lion");
  }
}

}  // namespace
}  // namespace lowtide::testing
