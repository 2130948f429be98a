#include "memory/arena.h"

#include <algorithm>

namespace lowtide {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kSmallest = size_t{64} << 10, kLargest = size_t{32} << 20;  // shared buffers
constexpr size_t kShare = 16;  // a new shared buffer is this part of what there is: what is unused stays small
constexpr size_t kOwn = 16;    // arrays of this part of a shared buffer and more get one of their own

}  // namespace

void Arena::reserve(size_t bytes) {
  if (bytes > 0 && bytes > left()) open(bytes);
}

size_t Arena::left() const { return open_ < 0 ? 0 : buffers_[static_cast<size_t>(open_)].bytes() - used_; }

void* Arena::add(size_t bytes) {
  buffers_.push_back(Buffer(*env_, bytes));
  allocated_ += static_cast<int64_t>(buffers_.back().bytes());
  return buffers_.back().data();
}

void Arena::open(size_t bytes) {
  add(bytes);
  open_ = static_cast<int64_t>(buffers_.size()) - 1;
  used_ = 0;
}

void* Arena::allocate(size_t bytes) {
  alignas(kAlignment) static std::byte nothing[kAlignment];
  if (bytes == 0) return nothing;
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (bytes > left()) {
    const size_t shared = std::clamp(static_cast<size_t>(allocated_) / kShare, kSmallest, kLargest);
    if (bytes >= shared / kOwn) return add(bytes);
    open(shared);
  }
  void* const out = buffers_[static_cast<size_t>(open_)].data() + used_;
  used_ += bytes;
  return out;
}

}  // namespace lowtide
