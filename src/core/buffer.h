// Owns zeroed, page-aligned system memory for optimizer state, in huge pages where they help. Move-only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/env.h"

namespace lowtide {

// Memory and files are rounded up to whole pages and aligned to them.
inline constexpr int64_t kPageBytes = 4096;

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

struct Unmap {
  Env* env = nullptr;
  size_t bytes = 0;
  void operator()(std::byte* data) const { env->unmap(data, bytes); }
};

class Buffer {
 public:
  Buffer() = default;
  // Throws kOutOfMemory, naming the bytes, if the system cannot provide them. env outlives the buffer.
  Buffer(Env& env, size_t bytes);

  // Returns the pages to the system. The addresses stay valid and read as zero until written again.
  void drop_pages() const;

  std::byte* data() const { return data_.get(); }
  size_t bytes() const { return data_ ? data_.get_deleter().bytes : 0; }  // rounded up to whole pages

 private:
  std::unique_ptr<std::byte, Unmap> data_;
};

}  // namespace lowtide
