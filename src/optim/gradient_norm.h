// Sums over all gradients of an optimizer: their norm, with the clip that limits it, and the terms of rules that step
// by sums (Prodigy).
#pragma once

#include <span>

#include "backend/cpu/gradient_sums.h"
#include "backend/kernels/clip.h"
#include "backend/term_sums.h"
#include "lowtide/optimizer.h"

namespace lowtide {

// Reads the gradients once. On a device this runs after the work queued on `stream`, and the call waits. Throws
// kInvalidArgument for gradients that a step would refuse.
cpu::GradientSums gradient_sums(Optimizer& of, std::span<const Gradient> grads, void* stream);

// Reads gradients and states once; changes nothing but that states may be allocated. Add up the sums of all optimizers
// and processes that share parameters, and give them to each step as StepOptions::sums. Throws kInvalidArgument for
// gradients that a step would refuse; other sums that are not finite tell of gradients that are not.
TermSums term_sums(Optimizer& of, std::span<const Gradient> grads, const StepOptions& options);

// Throws kInvalidArgument if the gradient factor is not finite in float32.
void check_grad_scale(double scale);
// Refuses loss scaling for a step that is not recorded: there, the host knows the scale.
void require_no_scaling(const StepOptions& options);

// Describes the norm of gradients times a factor. norm_type: 2 or infinity. Throws kInvalidArgument.
kernels::ClipTo clip_request(double max_norm, double norm_type, double factor);

// Returns the norm, which is not finite if a gradient is not; the factor by which a step reduces a larger norm to
// max_norm, as in torch; and whether the step may skip its check of gradients. A norm that is not finite clips nothing:
// the step's own check reports the gradient.
kernels::Clip clip_of(const cpu::GradientSums& sums, const kernels::ClipTo& to);

// Waits for the clip and returns the options with its factor in grad_scale instead.
StepOptions without_clip(const StepOptions& options);

}  // namespace lowtide
