#include "memory/arena.h"

#include <algorithm>

namespace lowtide {
namespace {

constexpr size_t kSmallest = size_t{64} << 10, kLargest = size_t{32} << 20;  // sizes of shared buffers
constexpr size_t kShare = 16;  // a new shared buffer is this fraction of the existing memory, so that little is unused
constexpr size_t kOwn = 16;    // arrays of at least this fraction of a shared buffer get their own buffer

}  // namespace

size_t ArenaSizes::take(size_t bytes) {
  const auto taken = static_cast<size_t>(round_up(static_cast<int64_t>(bytes), kPageBytes));  // a Buffer rounds up, too
  ++buffers_;
  total_ += static_cast<int64_t>(taken);
  return taken;
}

size_t ArenaSizes::open(size_t bytes) {
  open_ = buffers_;
  used_ = 0;
  return left_ = take(bytes);
}

size_t ArenaSizes::reserve(size_t bytes) { return bytes <= left_ ? 0 : open(bytes); }

ArenaSizes::Place ArenaSizes::allocate(size_t bytes) {
  if (bytes == 0) return {};
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  size_t taken = 0;
  if (bytes > left_) {
    const size_t shared = std::clamp(static_cast<size_t>(total_) / kShare, kSmallest, kLargest);
    if (bytes >= shared / kOwn) return {buffers_, 0, take(bytes)};
    taken = open(shared);
  }
  const Place place{open_, used_, taken};
  used_ += bytes;
  left_ -= bytes;
  return place;
}

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
