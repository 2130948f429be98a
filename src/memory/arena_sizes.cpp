#include "memory/arena_sizes.h"

#include <algorithm>

namespace lowtide {
namespace {

constexpr size_t kAlignment = 64, kPage = 4096;
constexpr size_t kSmallest = size_t{64} << 10;
constexpr size_t kLargest = size_t{32} << 20;  // growth steps; a single larger array gets a buffer of its size

}  // namespace

size_t ArenaSizes::take(size_t bytes) {
  last_ = (bytes + kPage - 1) / kPage * kPage;  // as a Buffer rounds
  total_ += static_cast<int64_t>(last_);
  used_ = 0;
  return last_;
}

size_t ArenaSizes::reserve(size_t bytes) {
  return bytes == 0 || (total_ > 0 && used_ + bytes <= last_) ? 0 : take(bytes);
}

size_t ArenaSizes::allocate(size_t bytes) {
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  size_t taken = 0;
  // Doubling keeps small optimizers small and large ones in few buffers.
  if (total_ == 0 || used_ + bytes > last_)
    taken = take(std::max(bytes, std::clamp(static_cast<size_t>(total_), kSmallest, kLargest)));
  offset_ = used_;
  used_ += bytes;
  return taken;
}

}  // namespace lowtide
