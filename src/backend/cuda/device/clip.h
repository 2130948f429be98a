// Clips for which the host does not wait. The other kernels are in launch.h.
#pragma once

#include "backend/cuda/device/launch.h"
#include "backend/kernels/clip.h"
#include "backend/kernels/sums.h"

namespace lowtide::cuda_kernels {

// Computes *clip and, if `norm` is not nullptr, stores the norm as float32.
cudaError_t clip(const kernels::Sums* sums, const kernels::ClipTo& to, kernels::Clip* clip, float* norm,
                 const Queue& queue);
// Sets *first to kNoItem, or to 0 if *scaling.found_inf is above 0. Divides the clip's factor, which is 1 unless
// measured, by the loss scale.
cudaError_t loss_scaling(const LossScaling& scaling, kernels::Clip* clip, bool is_measured, uint32_t* first,
                         const Queue& queue);
// Multiplies the gradient factors of the items by the clip's factor and by `scale`, rounding once.
cudaError_t scale_items(kernels::DeviceItem* items, int64_t count, const kernels::Clip* clip, double scale,
                        const Queue& queue);
// Does first_nonfinite() of the scaled items, unless the norm shows that all gradients are finite.
cudaError_t first_nonfinite_behind(const kernels::Clip* clip, double scale, const kernels::DeviceItem* items,
                                   const int64_t* starts, int64_t count, int64_t tiles, uint32_t* first,
                                   const Queue& queue);

}  // namespace lowtide::cuda_kernels
