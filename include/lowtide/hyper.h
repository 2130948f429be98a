// Hyper-parameters of all rules in one struct: a rule reads those that its paper names (docs/rules.md) and ignores the
// others.
#pragma once

#include <string>

#include "lowtide/export.h"

namespace lowtide {

// lowtide/hyper.def says of each what it is, its default and its range. Optimizer::add_group and set_hyper refuse other
// values with an Error that names them.
struct Hyper {
#define LT_HYPER(type, name, value, range) type name = value;
#include "lowtide/hyper.def"
#undef LT_HYPER
};

// The rule's usual defaults (torch.optim's; for Lion, AdEMAMix, LAMB and LARS their papers'). Throws kInvalidArgument for
// an unknown rule.
LT_API Hyper default_hyper(const std::string& rule);

}  // namespace lowtide
