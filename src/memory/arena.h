// Allocates the state memory of one optimizer; small arrays share buffers. Arrays are not freed individually, because
// state lives as long as its optimizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/buffer.h"

namespace lowtide {

// The arithmetic of an Arena without its memory. Used by Arena and to predict how much memory an arena takes.
class ArenaSizes {
 public:
  static constexpr size_t kAlignment = 64;

  // The position of an allocation.
  struct Place {
    size_t buffer = 0, offset = 0;  // index of the buffer, and bytes from its start
    size_t taken = 0;               // size of the buffer if it must be allocated, else 0
  };
  Place allocate(size_t bytes);
  // Reserves one buffer for the next allocations of `bytes` in total. Returns its size if it must be allocated, else 0.
  size_t reserve(size_t bytes);
  int64_t allocated_bytes() const { return total_; }  // bytes of all buffers

 private:
  size_t take(size_t bytes);
  size_t open(size_t bytes);

  size_t buffers_ = 0;
  size_t open_ = 0, used_ = 0, left_ = 0;  // the buffer that small arrays share, and its used and free bytes
  int64_t total_ = 0;
};

// Used by one thread at a time.
class Arena {
 public:
  explicit Arena(Env& env) : env_(&env) {}
  // Returns zeroed memory, aligned to 64 bytes. Throws kOutOfMemory and then changes nothing.
  void* allocate(size_t bytes);
  // Allocates exactly the memory for the next allocations: `bytes` in total, each a multiple of 64. Throws like
  // allocate().
  void reserve(size_t bytes);
  const std::vector<Buffer>& buffers() const { return buffers_; }
  int64_t allocated_bytes() const { return sizes_.allocated_bytes(); }  // allocated from the system

 private:
  Env* env_;
  std::vector<Buffer> buffers_;
  ArenaSizes sizes_;
};

}  // namespace lowtide
