// Weights that do not fit in memory: an unnamed scratch file whose bytes are memory at one address. Every access finds
// the bytes that were written last, whether they are in memory or not: bring() and let_go() only choose when the disk
// is read and written, and turn its errors into exceptions. (An access that the disk refuses raises SIGBUS.)
//
// Pages are the system's page cache, which takes what has been written back from memory when memory runs short. bring()
// and let_go() may be called by any thread, also beside accesses. Forked children see the same memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/buffer.h"
#include "core/env.h"
#include "memory/scratch_file.h"

namespace lowtide {

class MappedFile {
 public:
  // `directory`: see ScratchFile. `bytes`: rounded up to kPageBytes, allocated at once, zero. env outlives the file.
  // Throws kInvalidArgument, kIo (no room on the disk) or kOutOfMemory (no addresses), and leaves nothing behind.
  MappedFile(Env& env, const std::string& directory, int64_t bytes);

  std::byte* data() const { return memory_.get(); }
  int64_t bytes() const { return bytes_; }
  // Bytes that bring() has read and let_go() has written.
  int64_t read_bytes() const { return read_; }
  int64_t written_bytes() const { return written_; }

  // Offsets and sizes are multiples of kPageBytes, within the file.
  // Reads a range into memory. Throws kIo, naming it.
  void bring(int64_t offset, int64_t bytes);
  // Takes a range out of memory; if it was `changed`, once it is written. Throws kIo, and then memory keeps it.
  void let_go(int64_t offset, int64_t bytes, bool changed);

 private:
  void check(int64_t offset, int64_t bytes) const;

  Env& env_;
  const int64_t bytes_;
  UnnamedFile unnamed_;
  std::unique_ptr<std::byte, Unmap> memory_;
  std::atomic<int64_t> read_ = 0, written_ = 0;
};

}  // namespace lowtide
