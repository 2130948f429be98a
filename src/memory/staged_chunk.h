// The copy in host memory through which the host reads and changes, between steps, a chunk that it cannot address where
// it is. It stays until another chunk is asked for, so that many small changes become one write.
//
// Used by one thread at a time. `read` and `write` may throw, and what they throw passes through: after a failed read
// nothing is staged, after a failed write the change is still to be written.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <utility>

#include "core/buffer.h"

namespace lowtide {

class StagedChunk {
 public:
  // Between a chunk's record and its copy, at once.
  using Read = std::function<void(size_t chunk, std::byte* copy)>;
  using Write = std::function<void(size_t chunk, const std::byte* copy)>;
  StagedChunk(Read read, Write write) : read_(std::move(read)), write_(std::move(write)) {}

  // The chunk's copy, of `bytes` bytes, in `memory`: the same for every chunk, borrowed until forget(), and made larger
  // if it is too small. Valid until the next call of bring() for another chunk.
  std::byte* bring(size_t chunk, Env& env, Buffer& memory, int64_t bytes) {
    if (holds(chunk)) return copy_;
    write_back();
    forget();
    if (static_cast<int64_t>(memory.bytes()) < bytes) memory = Buffer(env, static_cast<size_t>(bytes));
    copy_ = memory.data();
    read_(chunk, copy_);
    chunk_ = chunk;
    return copy_;
  }
  bool holds(size_t chunk) const { return chunk_ == chunk; }
  // The host has changed the copy, if it is of this chunk.
  void note_change(size_t chunk) { changed_ = changed_ || holds(chunk); }
  // Writes a change that has not been written.
  void write_back() {
    if (!changed_) return;
    write_(*chunk_, copy_);
    changed_ = false;
  }
  // Forgets the copy, and a change with it.
  void forget() { chunk_.reset(), changed_ = false; }

 private:
  Read read_;
  Write write_;
  std::optional<size_t> chunk_;
  std::byte* copy_ = nullptr;
  bool changed_ = false;
};

}  // namespace lowtide
