// Sums over gradients, for the norm that clips them; and over all parameters, for each rule with sums and each codec.
#include "backend/cuda/device/prelude.inc"
#include "backend/kernels/step-inl.h"
#include "backend/kernels/sums-inl.h"
#include "backend/kernels/terms-inl.h"

static __global__ void __launch_bounds__(cuda_kernels::kThreads)
    sum_squares_kernel(const DeviceItem* items, const i64* starts, i64 count, i64 tiles, SumParts* parts) {
  sum_squares(items, starts, count, tiles, parts);
}

static __global__ void __launch_bounds__(cuda_kernels::kThreads) merge_sums_kernel(const SumParts* parts, Sums* sums) {
  merge_sums(parts, sums);
}

template <class R, class C>
__global__ void __launch_bounds__(cuda_kernels::kThreads)
    terms_kernel(const DeviceItem* items, const i64* starts, i64 count, i64 tiles, const void* tables,
                 SumParts* parts) {
  sum_terms<R, C>(items, starts, count, tiles, static_cast<const typename C::Tables*>(tables), parts);
}

template <class R, class... Arguments>
cudaError_t queue_terms(int codec, i64 tiles, const Queue& queue, Arguments... arguments) {
  switch (codec) {
#define LT_CODEC(number, name, C) \
  case number:                    \
    return queue_kernel(terms_kernel<R, C>, tiles, cuda_kernels::kWarps, queue, arguments...);
#include "portable/codecs.def"
#undef LT_CODEC
  }
  return cudaErrorInvalidValue;
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

cudaError_t sum_terms(int rule, int codec, const kernels::DeviceItem* items, const int64_t* starts, int64_t count,
                      int64_t tiles, const void* tables, kernels::SumParts* parts, const Queue& queue) {
  switch (rule) {
#define LT_RULE(number, name, R)
#define LT_SUM_RULE(number, name, R)                                                                              \
  case number:                                                                                                    \
    return queue_terms<R>(codec, tiles, queue, items, reinterpret_cast<const i64*>(starts), count, tiles, tables, \
                          parts);
#include "portable/rules.def"
#undef LT_RULE
  }
  return cudaErrorInvalidValue;
}

}  // namespace lowtide::cuda_kernels
