// A file for state that does not fit in memory: scratch, not a checkpoint. It has no name (or loses it at once), so
// nothing is left behind however the process ends. Its mode is 0600. Its space is allocated at opening, where a full
// disk is reported. It is never fsynced.
//
// Reads and writes are asynchronous: by io_uring if available, else by a few threads with pread and pwrite; they bypass
// the page cache (O_DIRECT) if the file system allows it. Large transfers are cut into requests of `request_bytes`, of
// which `depth` run at a time. One thread at a time uses a ScratchFile.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <sys/types.h>

#include "core/buffer.h"
#include "core/env.h"
#include "core/forks.h"
#include "memory/descriptor.h"
#include "memory/directory_lock.h"
#include "memory/transfers.h"

namespace lowtide {

// Counts the bytes that a store has read from its scratch file and written to it.
struct Traffic {
  int64_t read_bytes = 0, written_bytes = 0;
  double waited_seconds = 0;  // seconds that steps waited for reads and writes
};

// Adds the seconds of its lifetime.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// An unnamed file in a directory that no other process uses; see ScratchFile.
struct UnnamedFile {
  // `direct`: try O_DIRECT.
  UnnamedFile(Env& env, const std::string& directory, int64_t bytes, bool direct);

  const std::string path;  // of the directory
  bool direct;             // the file bypasses the page cache
  std::optional<DirectoryLock> lock;
  Descriptor file;
};

class ScratchFile {
 public:
  struct Options {
    bool direct = true;    // try O_DIRECT
    bool io_uring = true;  // try io_uring
    // Concurrent requests. Enough for all of a pager's ring: a request beyond it would only be issued in a later call,
    // and none comes while a chunk is stepped.
    int depth = 64;
    int64_t request_bytes = 1 << 20;  // largest size of a request; a multiple of kAlignment
  };
  static constexpr int64_t kAlignment = kPageBytes;  // alignment of offsets, sizes and memory

  // `directory` must be an existing directory that this process may write to; its last path component is not a symbolic
  // link. If another process uses it, the error names that process (by a lock on <directory>/.lowtide.lock); several
  // files of this process may share it. `bytes`: size, rounded up to kAlignment, allocated at once. `env` outlives this
  // object. Throws kInvalidArgument (not a directory, a link, in use) or kIo (the system refused). Nothing is left
  // behind, on success or failure, except the small lock file, which can be removed while no process uses the
  // directory. A forked child cannot use the file, only destroy it.
  ScratchFile(Env& env, const std::string& directory, int64_t bytes, const Options& options);
  ScratchFile(Env& env, const std::string& directory, int64_t bytes) : ScratchFile(env, directory, bytes, Options()) {}
  ~ScratchFile();  // waits for running transfers
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  int64_t bytes() const { return bytes_; }
  // Grows to at least `bytes`, allocated at once; every transfer must have been waited for. Throws kIo and changes
  // nothing.
  void grow(int64_t bytes);

  using Ticket = Transfers::Ticket;
  // Starts a transfer; nobody else may touch the memory until wait() has returned for it. Offset, size and memory are
  // multiples of kAlignment, within the file. Requests beyond `depth` start in later calls of read, write and wait.
  Ticket read(int64_t offset, std::byte* to, int64_t bytes) { return start(false, offset, to, bytes); }
  Ticket write(int64_t offset, const std::byte* from, int64_t bytes) {
    return start(true, offset, const_cast<std::byte*>(from), bytes);  // requests of both kinds are alike
  }
  // Blocks until the transfer is done; call it once per ticket. Short transfers are resumed, EINTR and EAGAIN retried.
  // Throws kIo once nothing of the transfer is running: the message gives operation, directory, offset, bytes and the
  // system's reason.
  void wait(Ticket ticket);

  // Reads at once, beside running transfers elsewhere in the file. Any thread. Throws kIo like wait().
  void read_now(int64_t offset, std::byte* to, int64_t bytes) const;

  bool direct() const { return unnamed_.direct; }
  const char* engine() const { return transfers_->engine().name(); }  // "io_uring" or "threads"

 private:
  void check_process() const;
  void check_transfer(bool write, int64_t offset, const std::byte* memory, int64_t bytes) const;
  [[noreturn]] void fail_transfer(const Transfers::Outcome& outcome) const;
  Ticket start(bool write, int64_t offset, std::byte* memory, int64_t bytes);

  // Constructed in this order, and destroyed in reverse.
  Env& env_;
  const int64_t forks_ = forks();
  int64_t bytes_;
  UnnamedFile unnamed_;
  std::optional<Transfers> transfers_;
};

// Throws like ScratchFile's constructor if the path is not a usable directory, without creating anything.
void check_scratch_directory(Env& env, const std::string& directory);

}  // namespace lowtide
