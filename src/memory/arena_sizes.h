// The arithmetic of an Arena, without its memory: the arena itself and predictions of what it will take use it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lowtide {

class ArenaSizes {
 public:
  static constexpr size_t kAlignment = 64;

  // Where an allocation goes.
  struct Place {
    size_t buffer = 0, offset = 0;  // number of the buffer, from 0, and bytes from its start
    size_t taken = 0;               // size of the buffer if it has to be taken from the system first, else 0
  };
  Place allocate(size_t bytes);
  // Makes one buffer for the next allocations of `bytes` together; its size if it has to be taken, else 0.
  size_t reserve(size_t bytes);
  int64_t allocated_bytes() const { return total_; }  // of all buffers

 private:
  size_t take(size_t bytes);
  size_t open(size_t bytes);

  size_t buffers_ = 0;
  size_t open_ = 0, used_ = 0, left_ = 0;  // the buffer that small arrays share, and its bytes
  int64_t total_ = 0;
};

}  // namespace lowtide
