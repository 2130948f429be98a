// The norm of all gradients of an optimizer, and what clips them to one.
#pragma once

#include <span>

#include "backend/cpu/gradient_sums.h"
#include "backend/kernels/clip.h"
#include "lowtide/optimizer.h"

namespace lowtide {

// One read of the gradients; on a device it runs behind the work queued on `stream`, and the call waits. Throws
// kInvalidArgument for gradients that a step would refuse.
cpu::GradientSums gradient_sums(Optimizer& of, std::span<const Gradient> grads, void* stream);

// Throws kInvalidArgument for a factor of gradients that is not finite as float32.
void check_grad_scale(double scale);

// The norm to be made of gradients times a factor. norm_type: 2 or infinity. Throws kInvalidArgument.
kernels::ClipTo clip_request(double max_norm, double norm_type, double factor);

// The norm, not finite if a gradient is not; the factor with which a step makes max_norm of a norm that is larger, as
// torch has it; and whether it then need not look for gradients that are not finite. A norm that is not finite clips
// nothing: the step's own check reports the gradient.
kernels::Clip clip_of(const cpu::GradientSums& sums, const kernels::ClipTo& to);

// The same options without a clip: waits for it, and has its factor in grad_scale.
StepOptions without_clip(const StepOptions& options);

}  // namespace lowtide
