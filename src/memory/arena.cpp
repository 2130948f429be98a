#include "memory/arena.h"

namespace lowtide {

void Arena::reserve(size_t bytes) {
  ArenaSizes after = sizes_;
  if (const size_t taken = after.reserve(bytes)) buffers_.push_back(Buffer(taken));
  sizes_ = after;
}

void* Arena::allocate(size_t bytes) {
  ArenaSizes after = sizes_;
  if (const size_t taken = after.allocate(bytes)) buffers_.push_back(Buffer(taken));
  sizes_ = after;
  return buffers_.back().data() + after.offset();
}

}  // namespace lowtide
