// A scratch file (not a checkpoint) for state that does not fit in memory. The file has no name, or loses it at once,
// so nothing is left behind however the process ends. Its mode is 0600. Its space is allocated when the file is opened,
// so a full disk is reported then. The file is never fsynced.
//
// Reads and writes are asynchronous. They use io_uring if available, else a few threads with pread and pwrite, and
// bypass the page cache (O_DIRECT) if the file system allows it. Large transfers are cut into requests of
// `request_bytes`, of which `depth` run at a time. Used by one thread at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <sys/types.h>

#include "core/buffer.h"
#include "core/env.h"
#include "core/process.h"
#include "memory/descriptor.h"
#include "memory/directory_lock.h"
#include "memory/transfers.h"

namespace lowtide {

// The traffic between a store and its scratch file.
struct Traffic {
  int64_t read_bytes = 0, written_bytes = 0;
  double waited_seconds = 0;  // seconds that steps waited for reads and writes
};

// Adds the seconds of its lifetime to a total.
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
  // `direct` says whether to try O_DIRECT.
  UnnamedFile(Env& env, const std::string& directory, int64_t bytes, bool direct);

  const std::string path;  // the path of the directory
  bool direct;             // the file bypasses the page cache
  std::optional<DirectoryLock> lock;
  Descriptor file;
};

class ScratchFile {
 public:
  struct Options {
    bool direct = true;    // try O_DIRECT
    bool io_uring = true;  // try io_uring
    // The number of concurrent requests. The default is enough for all slots of a pager's ring; a request beyond it
    // would start only in a later call, and no call comes while a chunk is stepped.
    int depth = 64;
    int64_t request_bytes = 1 << 20;  // the largest size of a request; a multiple of kAlignment
  };
  static constexpr int64_t kAlignment = kPageBytes;  // alignment of offsets, sizes and memory

  // `directory` must be an existing directory that this process may write to, and its last path component must not be a
  // symbolic link. Several files of this process may share a directory. If another process uses the directory, the
  // error names that process (from the lock on <directory>/.lowtide.lock). `bytes`, the size, is rounded up to
  // kAlignment and allocated at once. `env` must outlive this object. Throws kInvalidArgument (not a directory, a link,
  // or in use) or kIo (the system refused). On success or failure nothing is left behind except the small lock file,
  // which can be removed while no process uses the directory. A forked child can only destroy the file.
  ScratchFile(Env& env, const std::string& directory, int64_t bytes, const Options& options);
  ScratchFile(Env& env, const std::string& directory, int64_t bytes) : ScratchFile(env, directory, bytes, Options()) {}
  ~ScratchFile();  // waits for running transfers
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  int64_t bytes() const { return bytes_; }
  // Enlarges the file to at least `bytes`, allocated at once. wait() must have returned for every transfer. Throws kIo
  // and then changes nothing.
  void grow(int64_t bytes);

  using Ticket = Transfers::Ticket;
  // Start a transfer. Nobody else may use the memory until wait() has returned for the transfer. Offset, size and
  // memory address are multiples of kAlignment, and the range is within the file. Requests beyond `depth` start in
  // later calls of read, write and wait.
  Ticket read(int64_t offset, std::byte* to, int64_t bytes) { return start(false, offset, to, bytes); }
  Ticket write(int64_t offset, const std::byte* from, int64_t bytes) {
    return start(true, offset, const_cast<std::byte*>(from), bytes);  // reads and writes share one form of request
  }
  // Blocks until the transfer is done. Call this once per ticket. Short transfers are resumed, and EINTR and EAGAIN are
  // retried. Throws kIo after all requests of the transfer have ended; the message gives the operation, directory,
  // offset, number of bytes and the system's reason.
  void wait(Ticket ticket);

  // Reads at once, even while transfers elsewhere in the file are running, in any thread. Throws kIo like wait().
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
