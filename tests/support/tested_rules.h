// The rules whose kernels the backend under test has: all, or those in LOWTIDE_TEST_RULES. A build of the CUDA plug-in
// may leave rules out (LOWTIDE_CUDA_RULES); ctest sets the variable when it tests PTX.
#pragma once

#include "backend/catalog.h"
#include "support/test.h"

namespace lowtide::testing {

// The numbers are those of rules.def.
inline const std::vector<int>& tested_rules() {
  static const std::vector<int> found = [] {
    const char* const text = std::getenv("LOWTIDE_TEST_RULES");
    const std::string names = text && *text ? "," + std::string(text) + "," : "";
    std::vector<int> rules_of;
    for (int rule = 0; rule < std::ssize(rules()); ++rule)
      if (names.empty() || names.find("," + std::string(rule_info(rule).name) + ",") != std::string::npos)
        rules_of.push_back(rule);
    // A misspelled name would silently leave out a rule.
    const auto wanted = names.empty() ? std::ssize(rules()) : std::ranges::count(names, ',') - 1;
    if (std::ssize(rules_of) != wanted)
      throw std::invalid_argument("LOWTIDE_TEST_RULES: got " + names + ", wanted names of rules.def, each once");
    return rules_of;
  }();
  return found;
}

inline bool is_tested(int rule) { return std::ranges::count(tested_rules(), rule) > 0; }

inline int any_rule(Rng& rng) { return tested_rules()[static_cast<size_t>(rng.below(std::ssize(tested_rules())))]; }

}  // namespace lowtide::testing
