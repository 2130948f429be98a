// A file for state that does not fit in memory: scratch, not a checkpoint. It has no name (or loses it at once), so
// nothing is left behind however the process ends. Its mode is 0600. Its space is allocated when it is opened, so a
// full disk shows then. It is never fsynced.
//
// Reads and writes are asynchronous: io_uring where there is one, else a few threads with pread and pwrite; past the
// page cache (O_DIRECT) where the file system can. Large ones are cut into requests of `request_bytes`, `depth` of
// which are under way at a time. One thread at a time uses a ScratchFile.
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
  double waited_seconds = 0;  // that steps stood still for reads and writes
};

// Adds the seconds of its life.
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
  ~ScratchFile();  // waits for transfers that are under way
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  int64_t bytes() const { return bytes_; }
  // To at least this, allocated at once; every transfer must have been waited for. Throws kIo and changes nothing.
  void grow(int64_t bytes);

  using Ticket = Transfers::Ticket;
  // Starts a transfer; memory stays untouched by others until wait() has returned for it. Offset, size and memory are
  // multiples of kAlignment, within the file. Requests beyond `depth` start in later calls of read, write and wait.
  Ticket read(int64_t offset, std::byte* to, int64_t bytes) { return start(false, offset, to, bytes); }
  Ticket write(int64_t offset, const std::byte* from, int64_t bytes) {
    return start(true, offset, const_cast<std::byte*>(from), bytes);  // requests of both kinds are alike
  }
  // Blocks until the transfer is over; each ticket once. Short transfers have been resumed, EINTR and EAGAIN retried.
  // Throws kIo, when nothing of the transfer is under way any more: operation, directory, offset, bytes and what the
  // system says.
  void wait(Ticket ticket);

  // Reads at once, beside transfers that are under way elsewhere in the file. Any thread. Throws kIo as wait().
  void read_now(int64_t offset, std::byte* to, int64_t bytes) const;

  bool direct() const { return direct_; }
  const char* engine() const { return transfers_->engine().name(); }  // "io_uring" or "threads"

 private:
  void check_process() const;
  void check_transfer(bool write, int64_t offset, const std::byte* memory, int64_t bytes) const;
  [[noreturn]] void fail_transfer(const Transfers::Outcome& outcome) const;
  Ticket start(bool write, int64_t offset, std::byte* memory, int64_t bytes);

  // In the order in which they are made; taken down the other way round.
  Env& env_;
  const int64_t forks_ = forks();
  const std::string path_;
  int64_t bytes_;
  bool direct_;
  std::optional<DirectoryLock> lock_;
  Descriptor file_;
  std::optional<Transfers> transfers_;
};

// Throws as a ScratchFile's constructor does for what is no directory, without taking or leaving anything.
void check_scratch_directory(Env& env, const std::string& directory);

}  // namespace lowtide
