// Elements of a tensor on their way through the cache to a kernel that wants them contiguous, or as floats.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/kernel_tables.h"
#include "core/layout.h"
#include "lowtide/tensor.h"

namespace lowtide::cpu {

constexpr int64_t kStaged = 1024;  // elements at a time: what a step of them touches stays in the first-level cache

class Staged {
 public:
  Staged(DType dtype, bool as_floats) : dtype_(dtype), converts_(as_floats && dtype != DType::kF32) {}

  // Elements [first, first + count), contiguous: in `tensor` itself where they can be, else a copy that lives until the
  // next call.
  const void* read(const AuxKernels& kernels, const Layout& layout, const void* tensor, int64_t first, int64_t count) {
    const void* here = static_cast<const std::byte*>(tensor) + first * dtype_bytes(dtype_);
    if (!layout.contiguous) {
      layout.gather(tensor, dtype_bytes(dtype_), first, count, gathered_);
      here = gathered_;
    }
    if (!converts_) return here;
    kernels.to_float[static_cast<int>(dtype_)](here, floats_, count);
    return floats_;
  }

  // Puts what read() returned back, after a kernel has changed it.
  void write(const AuxKernels& kernels, const Layout& layout, void* tensor, int64_t first, int64_t count) {
    void* const here = layout.contiguous ? static_cast<std::byte*>(tensor) + first * dtype_bytes(dtype_) : gathered_;
    if (converts_) kernels.from_float[static_cast<int>(dtype_)](floats_, here, count);
    if (!layout.contiguous) layout.scatter(gathered_, dtype_bytes(dtype_), first, count, tensor);
  }

 private:
  DType dtype_;
  bool converts_;
  alignas(64) std::byte gathered_[kStaged * sizeof(float)];
  alignas(64) float floats_[kStaged];
};

}  // namespace lowtide::cpu
