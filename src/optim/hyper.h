// The one place where hyper-parameters and options of groups are checked.
#pragma once

#include "backend/catalog.h"
#include "lowtide/optimizer.h"

namespace lowtide {

// Throws kInvalidArgument naming the value and what was wanted.
// rule: as users name it.
void check_hyper(const std::string& rule, const Hyper& hyper);
// What the rule's arguments of step `t` are made of.
RuleHyper rule_hyper(const Hyper& hyper, int64_t t, bool first);
// What of it decides which states a rule has.
RuleVariant variant_of(const Hyper& hyper);
// That averages of both signs in 4 bits are short ones. codec: of a parameter.
void check_averages(const std::string& rule, int codec, const Hyper& hyper);
void check_rounding(int codec, RoundingMode mode);
void check_group(const std::string& rule, const GroupOptions& options);  // but for the budget and averages

}  // namespace lowtide
