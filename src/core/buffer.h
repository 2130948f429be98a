// Memory from the system for optimizer state: zeroed, page-aligned, huge pages where they help. Move-only owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/env.h"

namespace lowtide {

// Memory and files are rounded to this, and aligned at it.
inline constexpr int64_t kPageBytes = 4096;

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

class Buffer {
 public:
  Buffer() = default;
  // Throws kOutOfMemory, naming the bytes, if the system has not got them. env outlives the buffer.
  Buffer(Env& env, size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept
      : env_(other.env_), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(env_, other.env_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  // Gives the pages back to the system; the addresses stay, and read as zero until they are written again.
  void drop_pages() const;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }  // rounded up to whole pages

 private:
  Env* env_ = nullptr;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace lowtide
