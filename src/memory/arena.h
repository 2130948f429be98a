// Hands out state memory of one optimizer, small arrays from shared buffers, and counts it. Nothing is given back one
// by one: state lives as long as its optimizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/buffer.h"
#include "memory/arena_sizes.h"

namespace lowtide {

class Arena {
 public:
  explicit Arena(Env& env) : env_(&env) {}
  // Zeroed, 64-byte aligned. Throws kOutOfMemory and changes nothing.
  void* allocate(size_t bytes);
  // Takes what the next allocations of `bytes` together (each a multiple of 64) need, and no more. Throws likewise.
  void reserve(size_t bytes);
  const std::vector<Buffer>& buffers() const { return buffers_; }
  int64_t allocated_bytes() const { return sizes_.allocated_bytes(); }  // taken from the system

 private:
  Env* env_;
  std::vector<Buffer> buffers_;
  ArenaSizes sizes_;
};

}  // namespace lowtide
