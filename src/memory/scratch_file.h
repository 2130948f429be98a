// A file for state that does not fit in memory: scratch, not a checkpoint. It has no name (or loses it at once), so
// that nothing is left behind however the process ends; mode 0600; its space is allocated when it is opened, so that a
// full disk shows then; never fsynced.
//
// Reads and writes are asynchronous: io_uring where there is one, else a few threads with pread and pwrite; past the
// page cache (O_DIRECT) where the file system can. Large ones are cut into requests of `request_bytes`, `depth` of
// which are under way at a time. One thread at a time uses a ScratchFile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/buffer.h"
#include "core/env.h"

namespace lowtide {

class ScratchFile {
 public:
  struct Options {
    bool direct = true;    // try O_DIRECT
    bool io_uring = true;  // try io_uring
    // Requests under way at a time. Enough for all of a pager's ring: what has to wait is issued only in a later call,
    // and none comes while a chunk is stepped.
    int depth = 64;
    int64_t request_bytes = 1 << 20;  // of one request at most; multiple of kAlignment
  };
  static constexpr int64_t kAlignment = kPageBytes;  // of offsets, sizes and memory

  // `directory` must be an existing directory that this process may write to, reached through no symbolic link in its
  // last component. Another process that has it in use is an error that names its process id (a lock on
  // <directory>/.lowtide.lock); several files of this process may share it. `bytes`: size, rounded up to kAlignment,
  // allocated at once. `env` outlives this object. Throws kInvalidArgument (not a directory, a link, in use) or kIo
  // (the system's refusal). Nothing is left behind, in success or failure, but the small lock file: it can be removed
  // while no process uses the directory. A forked child cannot use the file, only destroy it.
  ScratchFile(Env& env, const std::string& directory, int64_t bytes, const Options& options);
  ScratchFile(Env& env, const std::string& directory, int64_t bytes) : ScratchFile(env, directory, bytes, Options()) {}
  ~ScratchFile();  // waits for what is under way
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  int64_t bytes() const;
  // To at least this, allocated at once; every transfer must have been waited for. Throws kIo and changes nothing.
  void grow(int64_t bytes);

  using Ticket = int64_t;
  // Starts a transfer; memory stays untouched by others until wait() has returned for it. Offset, size and memory are
  // multiples of kAlignment, within the file. Requests beyond `depth` start in later calls of read, write and wait.
  Ticket read(int64_t offset, std::byte* to, int64_t bytes);
  Ticket write(int64_t offset, const std::byte* from, int64_t bytes);
  // Blocks until the transfer is over; each ticket once. Short transfers have been resumed, EINTR and EAGAIN retried.
  // Throws kIo, when nothing of the transfer is under way any more: operation, directory, offset, bytes and what the
  // system says.
  void wait(Ticket ticket);

  bool direct() const;
  const char* engine() const;  // "io_uring" or "threads"

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Throws as a ScratchFile's constructor does for what is no directory, without taking or leaving anything.
void check_scratch_directory(Env& env, const std::string& directory);

}  // namespace lowtide
