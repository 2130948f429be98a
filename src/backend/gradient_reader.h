// The norm of gradients in device memory: what a device's backend offers beside the operations of Backend.
#pragma once

#include <memory>
#include <span>

#include "backend/backend.h"
#include "backend/kernels/clip.h"
#include "backend/kernels/sums.h"

namespace lowtide {

// The norm of gradients and the factor that clips them, possibly still being computed.
class QueuedClip {
 public:
  virtual ~QueuedClip() = default;
  // Waits for them.
  virtual kernels::Clip wait() = 0;
};

class GradientReader {
 public:
  virtual ~GradientReader() = default;
  // Reads the gradients of these items once, for their exact sum of squares and their largest magnitude; non-finite
  // values, and their neighbours, are left out of the sum. Reads nothing else of the items. Synchronous.
  virtual kernels::Sums read_gradients(std::span<const StepItem> items, void* stream) = 0;
  // The same, queued, and the clip made from it, without waiting. *norm, in device memory or nullptr, gets the norm
  // there. nullptr if unsupported: call read_gradients instead.
  virtual std::shared_ptr<QueuedClip> queue_clip(std::span<const StepItem> /*items*/, const kernels::ClipTo& /*to*/,
                                                 float* /*norm*/, void* /*stream*/) {
    return nullptr;
  }
  // True if the clip comes from queue_clip.
  virtual bool has_queued(const QueuedClip& /*clip*/) const { return false; }
  // A guard for steps of items whose gradients such a clip has measured: these steps also multiply the gradients by the
  // clip's factor and by `scale`. searches: it checks for non-finite values, like queue_guard, unless the norm rules
  // them out; else word() is nullptr, and first() is meaningless. scaling: found_inf decides instead of a check; only on
  // a capturing queue, and then the clip may be nullptr.
  virtual std::shared_ptr<Guard> queue_clipped_guard(std::span<const StepItem> /*items*/,
                                                     const std::shared_ptr<QueuedClip>& /*clip*/, double /*scale*/,
                                                     bool /*searches*/, const LossScaling& /*scaling*/,
                                                     void* /*stream*/) {
    return nullptr;
  }
};

}  // namespace lowtide
