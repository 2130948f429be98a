// The one place where hyper-parameters are checked.
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

}  // namespace lowtide
