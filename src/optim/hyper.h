// Hyper-parameters by name, as lowtide/hyper.def lists them, with their ranges and checks.
#pragma once

#include "backend/catalog.h"
#include "lowtide/hyper.h"

namespace lowtide {

// Calls field(name, member) for every hyper-parameter of `hyper`; members are double or bool.
template <class H, class Fn>
void for_each_hyper(H& hyper, Fn&& field) {
#define LT_HYPER(type, name, value, range) field(#name, hyper.name);
#include "lowtide/hyper.def"
#undef LT_HYPER
}

// Throws kInvalidArgument, naming the value and what was wanted. rule: one that users can name.
void check_hyper(int rule, const Hyper& hyper);
// The input of RuleInfo::make_args, which computes the rule's arguments for step `t`.
RuleInput rule_input(const Hyper& hyper, int64_t t, bool first);

}  // namespace lowtide
