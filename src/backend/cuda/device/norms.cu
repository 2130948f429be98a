// Norms of whole parameters, for each rule with terms and each codec, and the arguments that use them.
#include "backend/cuda/device/prelude.inc"
#include "backend/kernels/step-inl.h"
#include "backend/kernels/norms-inl.h"
#include "backend/cuda/device/tiles-inl.h"
#include "backend/cuda/device/real-inl.h"
#include "backend/cuda/device/packed-inl.h"
#include "backend/cuda/device/lane_codec-inl.h"
#include "backend/cuda/device/lane_dynamic8-inl.h"
#include "backend/cuda/device/slow-inl.h"
#include "backend/cuda/device/tile-inl.h"
#include "backend/cuda/device/weights-inl.h"
#include "backend/cuda/device/step-inl.h"
#include "backend/cuda/device/step_tiles-inl.h"
#include "backend/cuda/device/norm_tiles-inl.h"
#include "backend/cuda/device/root-inl.h"

template <class R, class C>
__global__ void __launch_bounds__(cuda_kernels::kThreads, 2) norms_kernel(const __grid_constant__ StepArguments a) {
  norm_tiles<R, C>(a);
}

template <class R>
__global__ void __launch_bounds__(cuda_kernels::kThreads) put_norms_kernel(const __grid_constant__ StepArguments a) {
  if (is_void(a.replay)) return;
  for (i64 i = item_id(); i < a.count; i += item_count()) {
    DeviceNorms norms = a.norms[i];
    if (!norms.sums) continue;
    // ExactSum turns a sum that is not finite into NaN.
    for (int t = 0; t < 2; ++t)
      norms.norm[t] = norms.sums->others[t] ? __builtin_nan("") : root_of(norms.sums->limbs[t]);
    unsigned char* const to = const_cast<DeviceItem&>(a.items[i]).args;
    typename R::Args args;
    __builtin_memcpy(&args, to, sizeof args);
    R::put_norms(args, norms);
    __builtin_memcpy(to, &args, sizeof args);
  }
}

template <class R>
cudaError_t queue_norms(int codec, const StepArguments& a, const Queue& queue) {
  const auto of = [&](auto kernel) { return queue_kernel(kernel, a.tiles, cuda_kernels::kWarps, queue, a); };
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

template <class R>
cudaError_t queue_puts(const StepArguments& a, const Queue& queue) {
  return queue_kernel(put_norms_kernel<R>, a.count, cuda_kernels::kThreads, queue, a);
}

static StepArguments arguments_of(const StepLaunch& launch) {
  return {launch.items,  reinterpret_cast<const i64*>(launch.starts),
          launch.count,  launch.tiles,
          launch.tables, launch.replay,
          launch.norms,  nullptr};
}

}  // namespace lowtide::LT_CUDA_NAMESPACE

namespace lowtide::cuda_kernels {
using namespace cuda_device;

cudaError_t add_norms(const StepLaunch& launch, const Queue& queue) {
  switch (launch.rule) {
#define LT_RULE(number, name, R)
#define LT_NORM_RULE(number, name, R) \
  case number:                        \
    return queue_norms<R>(launch.codec, arguments_of(launch), queue);
#include "portable/rules.def"
#undef LT_RULE
  }
  return cudaErrorInvalidValue;
}

cudaError_t put_norms(const StepLaunch& launch, const Queue& queue) {
  switch (launch.rule) {
#define LT_RULE(number, name, R)
#define LT_NORM_RULE(number, name, R) \
  case number:                        \
    return queue_puts<R>(arguments_of(launch), queue);
#include "portable/rules.def"
#undef LT_RULE
  }
  return cudaErrorInvalidValue;
}

}  // namespace lowtide::cuda_kernels
