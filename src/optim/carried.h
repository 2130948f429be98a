// Numbers that are carried from step to step beside states: NAdam's product of mu ("mu_product"), Schedule-Free's sum
// of weights and largest learning rate ("weight_sum", "lr_max"), and how often its weights were switched since the last
// step ("switches"). The rule's header says how a step changes its own (portable/rules/hyper.h). They depend on the
// hyper-parameters that each step had; unknown, they are those that the hyper-parameters of now would have given.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/catalog.h"
#include "lowtide/optimizer.h"
#include "optim/parameter.h"

namespace lowtide {

// A product of mu at or below it stays as it is.
extern const double kNoMuProduct;

// How many a rule has, by its number.
inline int carried_count(int rule) { return static_cast<int>(rule_info(rule).carried_names.size()); }

// A parameter's carried numbers one step later, with these hyper-parameters.
Carried next_carried(const Parameter& param, const Hyper& hyper);
// The carried numbers of a rule after so many steps with these hyper-parameters.
Carried carried_as_now(int rule, const Hyper& hyper, int64_t steps);

// Their names for a parameter, constants, and they themselves: as many as there are names.
const std::vector<const char*>& carried_names(const Optimizer& of, int64_t param);
Carried carried_of(const Optimizer& of, int64_t param);
// To be called after set_steps() and load(), which leave those of the hyper-parameters of the next step. Throws
// kInvalidArgument for numbers that no steps give. Nothing happens for a rule that has none.
void set_carried(Optimizer& of, int64_t param, const Carried& numbers);

}  // namespace lowtide
