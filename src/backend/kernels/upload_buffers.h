// Arguments that kernels read besides tensors (items, starts, dims) reach the device through upload buffers: host
// memory that copies read directly, device memory of the same size, and the event after which both may be rewritten. A
// call waits for the device only if so much is in flight that another buffer would exceed kAlways and kMostBytes.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <list>
#include <utility>

namespace lowtide::kernels {

// Memory: the backend's part, copyable, with
//   Buffer        movable, made by {}; Buffer::bytes is 0 until it has memory
//   is_done(buffer), wait(buffer), wait_at_end(buffer) noexcept      query or wait for the event
//   allocate(buffer, bytes)                                          sets host and device memory, not Buffer::bytes
template <class Memory>
class UploadBuffers {
 public:
  using Buffer = typename Memory::Buffer;
  static constexpr size_t kAlways = 4;                   // number of buffers allowed at any size
  static constexpr size_t kMostBytes = size_t{4} << 20;  // of all buffers together, beyond kAlways
  static constexpr size_t kSmallest = size_t{4} << 10;   // also limits their number: a step has one per chunk

  explicit UploadBuffers(Memory memory) : memory_(std::move(memory)) {}
  // Waits for all readers of the buffers.
  ~UploadBuffers() {
    for (Buffer& buffer : buffers_) memory_.wait_at_end(buffer);
  }
  UploadBuffers(const UploadBuffers&) = delete;
  UploadBuffers& operator=(const UploadBuffers&) = delete;

  // Returns a buffer of at least `bytes` that nothing reads. The caller sets its event to the last reader.
  Buffer& acquire(size_t bytes) {
    const size_t room = std::bit_ceil(std::max(bytes, kSmallest));
    // Prefers a buffer that is large enough to one that must grow, which waits for the device. The first was used
    // first, so the others are not done before it.
    const auto large =
        std::find_if(buffers_.begin(), buffers_.end(), [&](const Buffer& buffer) { return buffer.bytes >= bytes; });
    if (large != buffers_.end() && memory_.is_done(*large)) buffers_.splice(buffers_.begin(), buffers_, large);
    const auto fits = [&](size_t more) { return bytes_ + more <= kMostBytes; };
    if ((buffers_.empty() || !memory_.is_done(buffers_.front())) && (buffers_.size() < kAlways || fits(room)))
      buffers_.emplace_front();
    while (buffers_.front().bytes < bytes && buffers_.size() > kAlways && !fits(room - buffers_.front().bytes)) {
      memory_.wait(buffers_.front());  // so that not all of many small buffers become large
      bytes_ -= buffers_.front().bytes;
      buffers_.pop_front();
    }
    Buffer& buffer = buffers_.front();
    memory_.wait(buffer);
    if (buffer.bytes < bytes) {
      bytes_ -= std::exchange(buffer.bytes, 0);
      memory_.allocate(buffer, room);
      buffer.bytes = room;
      bytes_ += room;
    }
    buffers_.splice(buffers_.end(), buffers_, buffers_.begin());
    return buffer;
  }

 private:
  Memory memory_;
  std::list<Buffer> buffers_;  // the least recently used first
  size_t bytes_ = 0;           // of all buffers together
};

}  // namespace lowtide::kernels
