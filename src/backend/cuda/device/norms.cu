// Norms of whole parameters, of each rule that has terms and each codec.
#include "backend/cuda/device/prelude.inc"
#include "backend/kernels/step-inl.h"
#include "backend/kernels/members-inl.h"
#include "backend/cuda/device/members-inl.h"
#include "backend/kernels/norms-inl.h"

template <class R, class C>
__global__ void __launch_bounds__(cuda_kernels::kThreads)
    norms_kernel(const DeviceItem* items, const i64* starts, i64 count, i64 blocks, const void* tables,
                 BlockNorms* out) {
  norm_blocks<R, C>(items, starts, count, blocks, static_cast<const typename C::Tables*>(tables), out);
}

template <class R, class... Arguments>
cudaError_t queue_norms(int codec, i64 blocks, const Queue& queue, Arguments... arguments) {
  // A warp takes a block at a time.
  const auto of = [&](auto kernel) { return queue_kernel(kernel, blocks, cuda_kernels::kWarps, queue, arguments...); };
  if constexpr (!R::kNormsReadState) {
    return of(norms_kernel<R, Fp32>);
  } else {
    switch (codec) {
#define LT_CODEC(number, name, C) \
  case number:                    \
    return of(norms_kernel<R, C>);
#include "portable/codecs.def"
#undef LT_CODEC
    }
    return cudaErrorInvalidValue;
  }
}

}  // namespace lowtide::LT_CUDA_NAMESPACE

namespace lowtide::cuda_kernels {
using namespace cuda_device;

cudaError_t norms(int rule, int codec, const kernels::DeviceItem* items, const int64_t* starts, int64_t count,
                  int64_t blocks, const void* tables, BlockNorms* out, const Queue& queue) {
  const auto* const from = reinterpret_cast<const i64*>(starts);
  switch (rule) {
#define LT_RULE(number, name, R)
#define LT_NORM_RULE(number, name, R)                                                                           \
  case number:                                                                                                  \
    return queue_norms<R>(codec, blocks, queue, items, from, static_cast<i64>(count), static_cast<i64>(blocks), \
                          tables, out);
#include "portable/rules.def"
#undef LT_RULE
  }
  return cudaErrorInvalidValue;
}

}  // namespace lowtide::cuda_kernels
