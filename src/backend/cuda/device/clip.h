// Clips that the host does not wait for; launch.h has the other kernels.
#pragma once

#include "backend/cuda/device/launch.h"
#include "backend/kernels/clip.h"
#include "backend/kernels/sums.h"

namespace lowtide::cuda_kernels {

// *norm, if there is one, becomes the norm as float32.
cudaError_t clip(const kernels::Sums* sums, const kernels::ClipTo& to, kernels::Clip* clip, float* norm,
                 const Queue& queue);
// *first is kNoItem, or 0 if *scaling.found_inf is above 0. The clip's factor, 1 unless it is measured, is divided by
// the loss scale.
cudaError_t loss_scaling(const LossScaling& scaling, kernels::Clip* clip, bool is_measured, uint32_t* first,
                         const Queue& queue);
// Multiplies the factors of items' gradients by the clip's factor and by `scale`, rounded once.
cudaError_t scale_items(kernels::DeviceItem* items, int64_t count, const kernels::Clip* clip, double scale,
                        const Queue& queue);
// first_nonfinite of scaled items, unless the norm says that there is none.
cudaError_t first_nonfinite_behind(const kernels::Clip* clip, double scale, const kernels::DeviceItem* items,
                                   const int64_t* starts, int64_t count, int64_t tiles, uint32_t* first,
                                   const Queue& queue);

}  // namespace lowtide::cuda_kernels
