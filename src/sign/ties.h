// The rules of ties by the names that users give them: those of ties.def in small letters, without the k.
#pragma once

#include <string>

#include "backend/signs.h"

namespace lowtide {

TieRule find_tie_rule(const std::string& name);  // throws kInvalidArgument naming those there are
std::string tie_rule_name(TieRule rule);

}  // namespace lowtide
