// Clips for which the host does not wait: the device computes the factor and puts it into the step's items.
#include "backend/gradient_limit.h"

#include "backend/cuda/device/prelude.inc"
#include "backend/cuda/device/tiles-inl.h"
#include "backend/cuda/device/nonfinite-inl.h"
#include "backend/cuda/device/root-inl.h"
#include "backend/kernels/clip-inl.h"

static __global__ void __launch_bounds__(cuda_kernels::kThreads)
    clip_kernel(const Sums* sums, ClipTo to, Clip* clip, float* norm) {
  if (item_id() != 0) return;
  if (to.loss_scale) to.scale = to.scale * (1.0 / static_cast<double>(*to.loss_scale));
  *clip = clip_to(clip_norm(sums->largest, root_of(sums->limbs), to.is_largest != 0, to.scale), to);
  if (norm) *norm = static_cast<float>(clip->norm);
}

static __global__ void __launch_bounds__(cuda_kernels::kThreads)
    loss_scaling_kernel(LossScaling scaling, Clip* clip, u32 is_measured, u32* first) {
  if (item_id() != 0) return;
  *first = *scaling.found_inf > 0 ? 0 : kNoItem;
  double factor = is_measured ? clip->factor : 1.0;
  if (scaling.scale) factor = factor * (1.0 / static_cast<double>(*scaling.scale));
  clip->factor = factor;
}

static __global__ void __launch_bounds__(cuda_kernels::kThreads)
    scale_items_kernel(DeviceItem* items, i64 count, const Clip* clip, double scale) {
  const float by = static_cast<float>(clip->factor * scale);
  for (i64 i = item_id(); i < count; i += item_count()) {
    const float scaled = items[i].grad_scale * by;
    items[i].grad_scale = scaled;
    items[i].limit_bits = bits(kGradientLimit / abs(scaled));
  }
}

static __global__ void __launch_bounds__(cuda_kernels::kThreads)
    first_nonfinite_behind_kernel(const Clip* clip, double scale, const DeviceItem* items, const i64* starts, i64 count,
                                  i64 tiles, u32* first) {
  if (clip_is_fine(*clip, scale)) return;
  find_nonfinite_in_tiles(items, starts, count, tiles, first);
}

}  // namespace lowtide::LT_CUDA_NAMESPACE

namespace lowtide::cuda_kernels {
using namespace cuda_device;

cudaError_t clip(const kernels::Sums* sums, const kernels::ClipTo& to, kernels::Clip* clip, float* norm,
                 const Queue& queue) {
  return queue_kernel(clip_kernel, 1, 1, queue, sums, to, clip, norm);
}

cudaError_t loss_scaling(const LossScaling& scaling, kernels::Clip* clip, bool is_measured, uint32_t* first,
                         const Queue& queue) {
  return queue_kernel(loss_scaling_kernel, 1, 1, queue, scaling, clip, u32{is_measured}, first);
}

cudaError_t scale_items(kernels::DeviceItem* items, int64_t count, const kernels::Clip* clip, double scale,
                        const Queue& queue) {
  return queue_kernel(scale_items_kernel, count, kThreads, queue, items, count, clip, scale);
}

cudaError_t first_nonfinite_behind(const kernels::Clip* clip, double scale, const kernels::DeviceItem* items,
                                   const int64_t* starts, int64_t count, int64_t tiles, uint32_t* first,
                                   const Queue& queue) {
  return queue_kernel(first_nonfinite_behind_kernel, tiles, kWarps, queue, clip, scale, items,
                      reinterpret_cast<const i64*>(starts), count, tiles, first);
}

}  // namespace lowtide::cuda_kernels
