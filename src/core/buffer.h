// Memory from the system for optimizer state: zeroed, page-aligned, huge pages where they help. Move-only owner.
#pragma once

#include <cstddef>
#include <utility>

#include "core/env.h"

namespace lowtide {

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

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }  // rounded up to whole pages

 private:
  Env* env_ = nullptr;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace lowtide
