// Plain data for clipping gradients to a norm, for all compilers.
#pragma once

#include <cstdint>

#include "lowtide/tensor.h"

namespace lowtide::kernels {

// The requested norm, and its limit.
struct ClipTo {
  double max_norm;
  double scale;         // the factor by which gradients are multiplied anyway
  uint32_t is_largest;  // 1: the maximum norm; 0: the 2-norm
  uint32_t unused;
  const float* loss_scale;  // on the device, or nullptr: also divides the scale
};

// The measured norm, and the factor that clips it.
struct Clip {
  double norm;     // norm of the gradients times the scale, before clipping
  double factor;   // the scale including clipping
  double clipped;  // the norm of gradients times the factor; not finite if the norm is not
};

}  // namespace lowtide::kernels
