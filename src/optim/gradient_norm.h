// The norm of all gradients of an optimizer, and what clips them to one.
#pragma once

#include <span>

#include "backend/cpu/gradient_sums.h"
#include "lowtide/optimizer.h"

namespace lowtide {

// One read of the gradients that are there; on a device behind what is queued on `stream`, and waited for. Throws
// kInvalidArgument for gradients that a step would refuse.
cpu::GradientSums gradient_sums(Optimizer& of, std::span<const Gradient> grads, void* stream);

// The norm of gradients times a finite factor. norm_type: 2 or infinity; throws kInvalidArgument. Not finite if one is
// not.
double gradient_norm(const cpu::GradientSums& sums, double norm_type, double factor);

// The factor with which a step makes max_norm of a norm that is larger, as torch has it, and whether it then need not
// look for gradients that are not finite. A norm that is not finite clips nothing: the step's own check says what is
// wrong.
ClippedNorm clip_to(double norm, double max_norm, double factor);

}  // namespace lowtide
