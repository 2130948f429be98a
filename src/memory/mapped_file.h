// An unnamed scratch file that is mapped at one address, for weights that do not fit in memory. Every access sees the
// bytes that were written last, whether they are in memory or not; bring() and let_go() only choose when the disk is
// read and written, and turn disk errors into exceptions. (An access for which the disk fails raises SIGBUS.)
//
// The pages belong to the system's page cache, which drops clean pages when memory runs short. bring() and let_go() may
// be called by any thread, also during accesses. Forked children see the same memory.
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
  // For `directory`, see ScratchFile. `bytes` is rounded up to kPageBytes; the bytes are allocated at once and are
  // zero. `env` must outlive the file. Throws kInvalidArgument, kIo (no room on the disk) or kOutOfMemory (no
  // addresses), and then leaves nothing behind.
  MappedFile(Env& env, const std::string& directory, int64_t bytes);

  std::byte* data() const { return memory_.get(); }
  int64_t bytes() const { return bytes_; }
  // The number of bytes that bring() has read and that let_go() has written.
  int64_t read_bytes() const { return read_; }
  int64_t written_bytes() const { return written_; }

  // Offsets and sizes must be multiples of kPageBytes within the file.
  // Reads a range into memory. Throws kIo; the message names the range.
  void bring(int64_t offset, int64_t bytes);
  // Writes a range to disk if it was `changed`, and removes it from memory. Throws kIo; then the range stays in memory.
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
