// Numbers that are carried from step to step beside states: NAdam's product of mu ("mu_product"), Schedule-Free's sum
// of weights and largest learning rate ("weight_sum", "lr_max"), and the number of switches of its weights since the
// last step ("switches"); Prodigy's estimate ("d", "d_max", "d_numerator", "k"), which all its parameters share. The
// rule's header says how a step changes them (portable/rules/hyper.h). They depend on the hyper-parameters of every
// step; if these are unknown, the current ones stand for all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/catalog.h"
#include "lowtide/optimizer.h"
#include "optim/parameter.h"

namespace lowtide {

// The number of a rule's carried numbers.
inline int carried_count(int rule) { return static_cast<int>(rule_info(rule).carried_names.size()); }

// A parameter's carried numbers one step later, with these hyper-parameters.
Carried next_carried(const Parameter& param, const Hyper& hyper);
// A rule's carried numbers after step t, from those before it, with these hyper-parameters and sums (RuleInfo::sums).
Carried next_carried(int rule, const Hyper& hyper, int64_t t, const Carried& before, const double (&sums)[2]);
// The carried numbers of a rule after that many steps with these hyper-parameters.
Carried carried_as_now(int rule, const Hyper& hyper, int64_t steps);

// False before a step that moved anything: then hyper-parameters, which may still change, give Prodigy's estimate.
inline bool has_begun(const Carried& estimate) { return estimate.of[3] > 0; }  // "k"

// Throws kInvalidArgument for numbers that no steps produce. where: for the error.
void check_carried(int rule, const Carried& numbers, const std::string& where);

// The names of a parameter's carried numbers, constants, and equally many numbers.
const std::vector<const char*>& carried_names(const Optimizer& of, int64_t param);
Carried carried_of(const Optimizer& of, int64_t param);
// Call this after set_steps(), which leaves the numbers that the next step's hyper-parameters imply. Throws
// kInvalidArgument for numbers that no steps produce. Does nothing for a rule without carried numbers.
void set_carried(Optimizer& of, int64_t param, const Carried& numbers);

}  // namespace lowtide
