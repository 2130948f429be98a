#include "memory/arena.h"

namespace lowtide {

void Arena::reserve(size_t bytes) {
  ArenaSizes after = sizes_;
  if (const size_t taken = after.reserve(bytes)) buffers_.push_back(Buffer(*env_, taken));
  sizes_ = after;
}

void* Arena::allocate(size_t bytes) {
  alignas(ArenaSizes::kAlignment) static std::byte nothing[ArenaSizes::kAlignment];
  if (bytes == 0) return nothing;
  ArenaSizes after = sizes_;
  const ArenaSizes::Place place = after.allocate(bytes);
  if (place.taken) buffers_.push_back(Buffer(*env_, place.taken));
  sizes_ = after;
  return buffers_[place.buffer].data() + place.offset;
}

}  // namespace lowtide
