// Computes the norm of gradients in device memory. Device backends offer this beside the operations of Backend.
#pragma once

#include <memory>
#include <span>

#include "backend/backend.h"
#include "backend/kernels/clip.h"
#include "backend/kernels/sums.h"

namespace lowtide {

// The norm of gradients and the factor that clips them, which the device may still be computing.
class QueuedClip {
 public:
  virtual ~QueuedClip() = default;
  // Waits for the norm and the factor.
  virtual kernels::Clip wait() = 0;
};

class GradientReader {
 public:
  virtual ~GradientReader() = default;
  // Reads the gradients of these items once, and returns their exact sum of squares and largest magnitude. Non-finite
  // values and their neighbours are left out of the sum. Reads nothing else of the items. Synchronous.
  virtual kernels::Sums read_gradients(std::span<const StepItem> items, void* stream) = 0;
  // Queues read_gradients() and the computation of the clip from its result, without waiting. If `norm` is not nullptr,
  // it is device memory that receives the norm. Returns nullptr if unsupported; then call read_gradients().
  virtual std::shared_ptr<QueuedClip> queue_clip(std::span<const StepItem> /*items*/, const kernels::ClipTo& /*to*/,
                                                 float* /*norm*/, void* /*stream*/) {
    return nullptr;
  }
  // Returns true if the clip comes from queue_clip() of this object.
  virtual bool has_queued(const QueuedClip& /*clip*/) const { return false; }
  // Returns a guard for steps of items whose gradients a clip from queue_clip() has measured; these steps also multiply
  // the gradients by the clip's factor and by `scale`. With `searches`, the guard checks for non-finite values like
  // queue_guard(), unless the norm rules them out; otherwise word() is nullptr and first() is meaningless. With
  // `scaling`, only on a capturing queue, found_inf decides instead of a check; the clip may then be nullptr.
  virtual std::shared_ptr<Guard> queue_clipped_guard(std::span<const StepItem> /*items*/,
                                                     const std::shared_ptr<QueuedClip>& /*clip*/, double /*scale*/,
                                                     bool /*searches*/, const LossScaling& /*scaling*/,
                                                     void* /*stream*/) {
    return nullptr;
  }
};

}  // namespace lowtide
