// The steps of each rule. Each rule has a .cu file, and another for its fast steps, if any (step_rule.inc).
#pragma once

#include "backend/cuda/device/launch.h"

namespace lowtide::cuda_kernels {

#define LT_RULE(number, name, R)                                         \
  cudaError_t step_##name(const StepLaunch& launch, const Queue& queue); \
  cudaError_t step_fast_##name(const StepLaunch& launch, const Queue& queue);
#include "portable/rules.def"
#undef LT_RULE

}  // namespace lowtide::cuda_kernels
