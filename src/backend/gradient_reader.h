// The norm of gradients in memory of a device: what a backend of one does beside the operations of Backend.
#pragma once

#include <memory>
#include <span>

#include "backend/backend.h"
#include "backend/kernels/clip.h"
#include "backend/kernels/sums.h"

namespace lowtide {

// The norm of gradients and the factor that clips them, which may still be on their way.
class QueuedClip {
 public:
  virtual ~QueuedClip() = default;
  // Waits for them.
  virtual kernels::Clip wait() = 0;
};

class GradientReader {
 public:
  virtual ~GradientReader() = default;
  // Reads the gradients of these items once, for their exact sum of squares and their largest magnitude; those that are
  // not finite, and their neighbours, are left out of the sum. Nothing else of the items is looked at. Synchronous.
  virtual kernels::Sums read_gradients(std::span<const StepItem> items, void* stream) = 0;
  // The same, queued, and what clips them: nothing waits. *norm, of the device's memory or nullptr, gets the norm
  // there. nullptr where there is no such thing, and read_gradients is to be asked.
  virtual std::shared_ptr<QueuedClip> queue_clip(std::span<const StepItem> /*items*/, const kernels::ClipTo& /*to*/,
                                                 float* /*norm*/, void* /*stream*/) {
    return nullptr;
  }
  // True if the clip is one of queue_clip's.
  virtual bool has_queued(const QueuedClip& /*clip*/) const { return false; }
  // A guard for the steps of items whose gradients such a clip has measured: steps that are given it multiply
  // these by its factor and by `scale`, too. searches: it looks for what is not finite, as queue_guard does, unless the
  // norm says that there is nothing; else word() is nullptr, and first() means nothing.
  virtual std::shared_ptr<Guard> queue_clipped_guard(std::span<const StepItem> /*items*/,
                                                     const std::shared_ptr<QueuedClip>& /*clip*/, double /*scale*/,
                                                     bool /*searches*/, void* /*stream*/) {
    return nullptr;
  }
};

}  // namespace lowtide
