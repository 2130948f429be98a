// A copy in host memory of a chunk that the host cannot address directly. Between steps, the host reads and changes the
// chunk through the copy. The copy stays until another chunk is requested, so that many small changes become one write.
//
// Used by one thread at a time. Exceptions of `read` and `write` pass through. After a failed read nothing is staged;
// after a failed write the change is still pending.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <utility>

#include "core/buffer.h"

namespace lowtide {

class StagedChunk {
 public:
  // These functions copy, at once, from a chunk's record to its copy and back.
  using Read = std::function<void(size_t chunk, std::byte* copy)>;
  using Write = std::function<void(size_t chunk, const std::byte* copy)>;
  StagedChunk(Read read, Write write) : read_(std::move(read)), write_(std::move(write)) {}

  // Returns a copy of the chunk, of `bytes` bytes, in `memory`. Pass the same memory for every chunk: it is borrowed
  // until forget() and enlarged if it is too small. The copy is valid until bring() is called for another chunk.
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
  // Notes that the host has changed the copy, if it belongs to this chunk.
  void note_change(size_t chunk) { changed_ = changed_ || holds(chunk); }
  // Writes a pending change.
  void write_back() {
    if (!changed_) return;
    write_(*chunk_, copy_);
    changed_ = false;
  }
  // Drops the copy and any pending change.
  void forget() { chunk_.reset(), changed_ = false; }

 private:
  Read read_;
  Write write_;
  std::optional<size_t> chunk_;
  std::byte* copy_ = nullptr;
  bool changed_ = false;
};

}  // namespace lowtide
