// The rules for ties by their public names: the names in ties.def in lower case, without the k. Pure.
#pragma once

#include <string>

#include "backend/signs.h"

namespace lowtide {

// Throws kInvalidArgument for an unknown name; the message names all rules.
TieRule find_tie_rule(const std::string& name);
// Returns the rule's number as text if the rule does not exist.
std::string tie_rule_name(TieRule rule);

}  // namespace lowtide
