// Stages elements of a tensor in the cache, for a kernel that needs them contiguous or as floats.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/backend.h"
#include "backend/cpu/kernel_tables.h"
#include "backend/catalog.h"
#include "backend/random_keys.h"
#include "core/layout.h"
#include "lowtide/tensor.h"

namespace lowtide::cpu {

constexpr int64_t kStaged = 4096;  // so that the floats of a parameter fit into half of the first-level cache

class Staged {
 public:
  Staged(const AuxKernels& kernels, DType dtype, bool as_floats)
      : kernels_(kernels), dtype_(dtype), converts_(as_floats && dtype != DType::kF32) {}
  // Stages the parameter of an item with a master, as floats.
  Staged(const AuxKernels& kernels, const StepItem& item, int64_t origin) : Staged(kernels, item.param_dtype, true) {
    item_ = &item;
    origin_ = origin;
  }

  // Returns elements [first, first + count), contiguous: in `tensor` if possible, else a copy that lives until the next
  // call.
  const void* read(const Layout& layout, const void* tensor, int64_t first, int64_t count) {
    const void* here = static_cast<const std::byte*>(tensor) + first * dtype_bytes(dtype_);
    if (!layout.contiguous) {
      layout.gather(tensor, dtype_bytes(dtype_), first, count, gathered_);
      here = gathered_;
    }
    if (!converts_) return here;
    if (item_)
      kernels_.join[static_cast<int>(dtype_)][item_->master.kind](master_run(const_cast<void*>(here), first, 0, count));
    else
      kernels_.to_float[static_cast<int>(dtype_)](here, floats_, count);
    return floats_;
  }

  // Writes back the elements that read() returned, after a kernel has changed them.
  void write(const Layout& layout, void* tensor, int64_t first, int64_t count) {
    void* const here = layout.contiguous ? static_cast<std::byte*>(tensor) + first * dtype_bytes(dtype_) : gathered_;
    if (item_)
      split(here, first, count);
    else if (converts_)
      kernels_.from_float[static_cast<int>(dtype_)](floats_, here, count);
    if (!layout.contiguous) layout.scatter(gathered_, dtype_bytes(dtype_), first, count, tensor);
  }

 private:
  // Returns a run of `count` of the elements read, from element first + done on.
  MasterRun master_run(void* weights, int64_t first, int64_t done, int64_t count) {
    const MasterWeights& master = item_->master;
    const int64_t e = first + done;
    auto* const residual = static_cast<std::byte*>(master.residual);
    return {static_cast<std::byte*>(weights) + done * dtype_bytes(dtype_),
            residual ? residual + residual_bytes(master.kind, e - origin_) : nullptr,
            floats_ + done,
            count,
            {},
            0};
  }

  void split(void* weights, int64_t first, int64_t count) {
    const MasterKernel kernel = kernels_.split[static_cast<int>(dtype_)][item_->master.kind];
    for (int64_t done = 0; done < count;) {
      const RandomRun random = random_run_at(*item_, first + done, count - done);
      MasterRun run = master_run(weights, first, done, random.count);
      run.index = random.index;
      weight_key_at(*item_, random.index_high, run.key);
      kernel(run);
      done += random.count;
    }
  }

  const AuxKernels& kernels_;
  DType dtype_;
  bool converts_;
  const StepItem* item_ = nullptr;  // an item whose parameter has a master
  int64_t origin_ = 0;              // the element at which the item's residual begins
  alignas(64) std::byte gathered_[kStaged * sizeof(float)];
  alignas(64) float floats_[kStaged];
};

}  // namespace lowtide::cpu
