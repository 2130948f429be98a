// Hyper-parameters as the list lowtide/hyper.def has them: by name, their ranges, and the checks.
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

// What a value must be, in words: "0 or more". "" for flags.
const char* range_of(const std::string& hyper_parameter);

// Throws kInvalidArgument naming the value and what was wanted. rule: as users name it.
void check_hyper(const std::string& rule, const Hyper& hyper);
// What the rule's arguments of step `t` are made of.
RuleInput rule_hyper(const Hyper& hyper, int64_t t, bool first);
// What of it decides which states a rule has.
RuleVariant variant_of(const Hyper& hyper);

}  // namespace lowtide
