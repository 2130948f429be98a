// Sign items in the form that kernels read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/kernels/items.h"
#include "backend/signs.h"

namespace lowtide::kernels {

// The most planes that sums of weights reach. Higher planes are zeros, which no counting kernel reads.
inline constexpr size_t kMostPlanes = 31;

// Make kernel arguments from checked items.
DeviceSignItem device_item(const SignItem& item);
DeviceVote device_item(const VoteItem& item);
DeviceVote device_item(const CountItem& item);
DeviceFeedback device_item(const FeedbackItem& item);

// Converts a pointer to the type that kernels take.
template <class T = unsigned char>
T* bytes(const std::byte* p) {
  return reinterpret_cast<T*>(const_cast<std::byte*>(p));
}

// The arguments that a kernel reads besides signs: an item and then arrays at aligned positions, copied together.
class Arguments {
 public:
  // Each returns the array's offset in bytes.
  size_t add(const void* data, size_t size);
  template <class T>
  size_t add(std::span<const T> array) {
    return add(array.data(), array.size_bytes());
  }
  size_t add_weights(std::span<const std::byte* const> ballots, std::span<const uint32_t> weights);

  const std::vector<std::byte>& all() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace lowtide::kernels
