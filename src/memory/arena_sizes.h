// The arithmetic of an Arena, without its memory: the arena itself and predictions of what it will take use it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lowtide {

class ArenaSizes {
 public:
  // Counts an allocation. Returns the bytes of a buffer that has to be taken from the system first; 0: none has to.
  size_t allocate(size_t bytes);
  size_t offset() const { return offset_; }  // of the last allocation in the last buffer
  // Likewise for a buffer that holds the next allocations of `bytes` together.
  size_t reserve(size_t bytes);
  int64_t allocated_bytes() const { return total_; }  // of all buffers

 private:
  size_t take(size_t bytes);

  size_t last_ = 0, used_ = 0;  // bytes of the last buffer, and how many of them are handed out
  size_t offset_ = 0;
  int64_t total_ = 0;
};

}  // namespace lowtide
