// Elements of a tensor on their way through the cache to a kernel that wants them contiguous, or as floats.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/backend.h"
#include "backend/cpu/kernel_tables.h"
#include "backend/dialect.h"
#include "core/layout.h"
#include "lowtide/tensor.h"

namespace lowtide::cpu {

constexpr int64_t kStaged = 1024;  // elements at a time: what a step of them touches stays in the first-level cache

class Staged {
 public:
  Staged(const AuxKernels& kernels, DType dtype, bool as_floats)
      : kernels_(kernels), dtype_(dtype), converts_(as_floats && dtype != DType::kF32) {}
  // Of weights that have a master; as floats.
  Staged(const AuxKernels& kernels, DType dtype, const MasterWeights& master, int64_t origin)
      : Staged(kernels, dtype, true) {
    master_ = master;
    origin_ = origin;
  }

  // Elements [first, first + count), contiguous: in `tensor` itself where they can be, else a copy that lives until the
  // next call.
  const void* read(const Layout& layout, const void* tensor, int64_t first, int64_t count) {
    const void* here = static_cast<const std::byte*>(tensor) + first * dtype_bytes(dtype_);
    if (!layout.contiguous) {
      layout.gather(tensor, dtype_bytes(dtype_), first, count, gathered_);
      here = gathered_;
    }
    if (!converts_) return here;
    if (master_.kind)
      kernels_.join[static_cast<int>(dtype_)][master_.kind](master_run(const_cast<void*>(here), first, count));
    else
      kernels_.to_float[static_cast<int>(dtype_)](here, floats_, count);
    return floats_;
  }

  // Puts what read() returned back, after a kernel has changed it.
  void write(const Layout& layout, void* tensor, int64_t first, int64_t count) {
    void* const here = layout.contiguous ? static_cast<std::byte*>(tensor) + first * dtype_bytes(dtype_) : gathered_;
    if (master_.kind)
      kernels_.split[static_cast<int>(dtype_)][master_.kind](master_run(here, first, count));
    else if (converts_)
      kernels_.from_float[static_cast<int>(dtype_)](floats_, here, count);
    if (!layout.contiguous) layout.scatter(gathered_, dtype_bytes(dtype_), first, count, tensor);
  }

 private:
  MasterRun master_run(void* weights, int64_t first, int64_t count) {
    return {weights,
            master_.residual ? static_cast<std::byte*>(master_.residual) + residual_bytes(master_.kind, first - origin_)
                             : nullptr,
            floats_,
            count,
            {master_.key[0], master_.key[1]},
            static_cast<uint32_t>(first)};
  }

  const AuxKernels& kernels_;
  DType dtype_;
  bool converts_;
  MasterWeights master_;
  int64_t origin_ = 0;  // the element that residuals begin with
  alignas(64) std::byte gathered_[kStaged * sizeof(float)];
  alignas(64) float floats_[kStaged];
};

}  // namespace lowtide::cpu
