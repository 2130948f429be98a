// Sums over all parameters, for each rule with sums and each codec.
#include "backend/cuda/device/sums.h"

#include "backend/cuda/device/prelude.inc"
#include "backend/kernels/step-inl.h"
#include "backend/kernels/members-inl.h"
#include "backend/cuda/device/members-inl.h"

LT_FN u32 atomic_add(u32* word, u32 x) { return atomicAdd(word, x); }
#include "backend/kernels/sums-inl.h"
#include "backend/kernels/terms-inl.h"

template <class R, class C>
__global__ void __launch_bounds__(cuda_kernels::kThreads)
    terms_kernel(const DeviceItem* items, const i64* starts, i64 count, i64 tiles, const void* tables, SumParts* parts) {
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

cudaError_t sum_terms(int rule, int codec, const kernels::DeviceItem* items, const int64_t* starts, int64_t count,
                      int64_t tiles, const void* tables, kernels::SumParts* parts, const Queue& queue) {
  switch (rule) {
#define LT_RULE(number, name, R)
#define LT_SUM_RULE(number, name, R)                                                                                 \
  case number:                                                                                                       \
    return queue_terms<R>(codec, tiles, queue, items, reinterpret_cast<const i64*>(starts), count, tiles, tables, parts);
#include "portable/rules.def"
#undef LT_RULE
  }
  return cudaErrorInvalidValue;
}

}  // namespace lowtide::cuda_kernels
