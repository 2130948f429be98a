// The sums of terms over all parameters of one or several optimizers, for rules that step by them (Prodigy).
#pragma once

#include <span>

#include "backend/term_sums.h"
#include "lowtide/optimizer.h"

namespace lowtide {

// Reads gradients and states once; changes nothing but that states may be allocated. Add up the sums of all optimizers
// and processes that share parameters, and give them to each step as StepOptions::sums. Throws kInvalidArgument for
// gradients that a step would refuse; other sums that are not finite tell of gradients that are not.
TermSums term_sums(Optimizer& of, std::span<const Gradient> grads, const StepOptions& options);

}  // namespace lowtide
