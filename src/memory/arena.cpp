#include "memory/arena.h"

#include <algorithm>

namespace lowtide {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kSmallest = size_t{64} << 10;
constexpr size_t kLargest = size_t{32} << 20;  // growth steps; a single larger array gets a buffer of its size

}  // namespace

void Arena::reserve(size_t bytes) {
  if (bytes == 0 || (!buffers_.empty() && used_ + bytes <= buffers_.back().bytes())) return;
  buffers_.push_back(Buffer(*env_, bytes));
  allocated_ += static_cast<int64_t>(buffers_.back().bytes());
  used_ = 0;
}

void* Arena::allocate(size_t bytes) {
  alignas(kAlignment) static std::byte nothing[kAlignment];
  if (bytes == 0) return nothing;
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (buffers_.empty() || used_ + bytes > buffers_.back().bytes()) {
    // Doubling keeps small optimizers small and large ones in few buffers.
    const size_t grow = std::clamp(static_cast<size_t>(allocated_), kSmallest, kLargest);
    Buffer buffer(*env_, std::max(bytes, grow));
    buffers_.push_back(std::move(buffer));
    allocated_ += static_cast<int64_t>(buffers_.back().bytes());
    used_ = 0;
  }
  void* out = buffers_.back().data() + used_;
  used_ += bytes;
  return out;
}

}  // namespace lowtide
