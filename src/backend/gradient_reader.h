// The norm of gradients in memory of a device: what a backend of one does beside the operations of Backend.
#pragma once

#include <span>

#include "backend/backend.h"
#include "backend/kernels/sums.h"

namespace lowtide {

class GradientReader {
 public:
  virtual ~GradientReader() = default;
  // Reads the gradients of these items once, for their exact sum of squares and their largest magnitude; those that are
  // not finite, and their neighbours, are left out of the sum. Nothing else of the items is looked at. Synchronous.
  virtual kernels::Sums read_gradients(std::span<const StepItem> items, void* stream) = 0;
};

// That of a backend; nullptr if it has none.
inline GradientReader* gradient_reader(Backend& of) { return dynamic_cast<GradientReader*>(&of); }

}  // namespace lowtide
