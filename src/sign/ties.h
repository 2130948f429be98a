// The rules for ties by their public names: the names in ties.def in lower case, without the k. Pure.
#pragma once

#include <string>

#include "backend/signs.h"

namespace lowtide {

// Throws kInvalidArgument, naming all rules.
TieRule find_tie_rule(const std::string& name);
// The number as text if the rule does not exist.
std::string tie_rule_name(TieRule rule);

}  // namespace lowtide
