// The rules for ties by their public names: the names of ties.def in small letters, without the k. Pure.
#pragma once

#include <string>

#include "backend/signs.h"

namespace lowtide {

// Throws kInvalidArgument, naming all rules.
TieRule find_tie_rule(const std::string& name);
// The number as text if there is no such rule.
std::string tie_rule_name(TieRule rule);

}  // namespace lowtide
