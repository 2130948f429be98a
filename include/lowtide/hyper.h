// The hyper-parameters of all rules in one struct. A rule reads the ones in its paper (docs/rules.md) and ignores the
// rest.
#pragma once

#include <limits>
#include <string>

#include "lowtide/export.h"

namespace lowtide {

// lowtide/hyper.def gives the meaning, default and range of each. Optimizer::add_group and set_hyper refuse values out
// of range with an Error that names the field.
struct Hyper {
#define LT_HYPER(type, name, value, range) type name = value;
#include "lowtide/hyper.def"
#undef LT_HYPER
};

// The rule's usual defaults (torch.optim's, or the paper's for Lion, AdEMAMix, LAMB, LARS). Throws kInvalidArgument for
// an unknown rule.
LT_API Hyper default_hyper(const std::string& rule);

}  // namespace lowtide
