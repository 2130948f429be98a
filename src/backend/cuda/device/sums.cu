// Sums over gradients, for the norm that clips them.
#include "backend/cuda/device/sums.h"

#include "backend/cuda/device/prelude.inc"
#include "backend/kernels/members-inl.h"
#include "backend/cuda/device/members-inl.h"

LT_FN u32 atomic_add(u32* word, u32 x) { return atomicAdd(word, x); }
#include "backend/kernels/sums-inl.h"

static __global__ void __launch_bounds__(cuda_kernels::kThreads)
    sum_squares_kernel(const DeviceItem* items, const i64* starts, i64 count, i64 tiles, SumParts* parts) {
  sum_squares(items, starts, count, tiles, parts);
}

static __global__ void __launch_bounds__(cuda_kernels::kThreads) merge_sums_kernel(const SumParts* parts, Sums* sums) {
  merge_sums(parts, sums);
}

}  // namespace lowtide::LT_CUDA_NAMESPACE

namespace lowtide::cuda_kernels {
using namespace cuda_device;

cudaError_t sum_squares(const kernels::DeviceItem* items, const int64_t* starts, int64_t count, int64_t tiles,
                        kernels::SumParts* parts, const Queue& queue) {
  return queue_kernel(sum_squares_kernel, tiles, kWarps, queue, items, reinterpret_cast<const i64*>(starts), count,
                      tiles, parts);
}

cudaError_t merge_sums(const kernels::SumParts* parts, kernels::Sums* sums, const Queue& queue) {
  return queue_kernel(merge_sums_kernel, 1, 1, queue, parts, sums);
}

}  // namespace lowtide::cuda_kernels
