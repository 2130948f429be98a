// Hands out state memory of one optimizer from few large buffers, and counts it. Nothing is given back one by one:
// state lives as long as its optimizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/buffer.h"
#include "memory/arena_sizes.h"

namespace lowtide {

class Arena {
 public:
  // Zeroed, 64-byte aligned. Throws kOutOfMemory and changes nothing.
  void* allocate(size_t bytes);
  // Takes what the next allocations of `bytes` together (each a multiple of 64) need, and no more. Throws likewise.
  void reserve(size_t bytes);
  int64_t allocated_bytes() const { return sizes_.allocated_bytes(); }  // taken from the system

 private:
  std::vector<Buffer> buffers_;
  ArenaSizes sizes_;
};

}  // namespace lowtide
