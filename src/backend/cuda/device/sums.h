// Sums over gradients, and of rules' terms. The other kernels are in launch.h.
#pragma once

#include "backend/cuda/device/launch.h"
#include "backend/kernels/sums.h"

namespace lowtide::cuda_kernels {

// Adds the squares of the items' gradients to the parts.
cudaError_t sum_squares(const kernels::DeviceItem* items, const int64_t* starts, int64_t count, int64_t tiles,
                        kernels::SumParts* parts, const Queue& queue);
cudaError_t merge_sums(const kernels::SumParts* parts, kernels::Sums* sums, const Queue& queue);

// Adds the terms of the items to kTermSums parts, for an LT_SUM_RULE.
cudaError_t sum_terms(int rule, int codec, const kernels::DeviceItem* items, const int64_t* starts, int64_t count,
                      int64_t tiles, const void* tables, kernels::SumParts* parts, const Queue& queue);

}  // namespace lowtide::cuda_kernels
