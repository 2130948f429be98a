// Saves while steps run: a thread writes the state as of the call to the file, part by part. Before a step changes a
// part that the thread has not reached, it copies the part; if there is no room for the copy, it waits until the thread
// has written an earlier one. The thread reads live state only between the optimizer's calls.
//
// Needs memory, beyond the lists, for kept copies (at most max(copy_bytes, largest part)) and for the thread's own
// buffer (the larger of the largest part and a piece of the file).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/buffer.h"
#include "core/process.h"
#include "optim/saved_parts.h"

namespace lowtide {

class AsyncSave {
 public:
  // Waits for queued work, captures the current state and makes the stores announce changes to the save. Writes nothing
  // yet. The tables' optimizers must be in a call and outlive the thread: each ends with finish(). copy_bytes -1: no
  // limit. Throws kInvalidArgument, kDeviceLost, kIo or kOutOfMemory; then no store announces anything.
  static std::shared_ptr<AsyncSave> begin(const Tables& tables, const std::string& path, const std::string& metadata,
                                          int64_t copy_bytes);
  ~AsyncSave();
  AsyncSave(const AsyncSave&) = delete;
  AsyncSave& operator=(const AsyncSave&) = delete;

  // -- For the optimizer, one call at a time. Nothing here throws; a failure is the save's.

  // Call at the start and end of each of the optimizer's calls: the thread reads no state in between.
  void enter() noexcept;
  void leave() noexcept;
  // Call before a parameter's directly addressable state changes, or before any other state does.
  void before_change(size_t param) noexcept;
  void before_any_change() noexcept;
  // Waits until the file is written or the save has failed. Do not call between enter() and leave().
  void finish() noexcept;
  // Makes the stores stop announcing changes. Call inside a call of the optimizer, once the save is done.
  void let_go(const ParamTable& table) const noexcept;

  // -- For any thread

  bool done() const;
  // Returns true if the save ends within that many seconds (below 0: no limit). Throws the error that made it fail.
  bool wait(double seconds);
  // Throws, once, a failure that wait() has not thrown; does not wait.
  void raise_unraised();
  // True once the save is done and its failure, if any, has been thrown; always true in a forked child.
  bool is_over() const;
  const std::string& path() const { return writer_.path(); }
  // Bytes of state that steps have copied so far, and the largest amount kept at once.
  int64_t copied_bytes() const;
  int64_t most_kept_bytes() const;
  // Like finish(), but gives up if an optimizer is inside a call: the exiting process never finishes it.
  void finish_for_exit() noexcept;

 private:
  struct Copy {
    size_t part = 0;
    Buffer memory;
  };
  enum class Next { kCopy, kLive, kNothing };

  AsyncSave(const Tables& tables, const std::string& path, const std::string& metadata, int64_t copy_bytes);
  void watch();
  void run() noexcept;
  Next next(size_t& part, Copy& copy);
  const SavedPart& at(size_t part) const { return parts_.all()[part]; }
  void keep(size_t part, const std::byte* memory) noexcept;
  void end(std::exception_ptr failure) noexcept;
  void join();
  bool is_of_parent() const { return forks() != forks_; }
  void check_process() const;

  const int64_t forks_ = forks();
  Env& env_;
  const int64_t copy_bytes_;
  checkpoint::Writer writer_;
  const SavedParts parts_;

  mutable std::mutex mutex_;  // guards the members below
  // Always notify_all(): glibc before 2.41 can lose a notify_one() (bug 25847).
  std::condition_variable changed_;
  std::vector<bool> taken_;  // for each part: read or copied, or about to be
  int inside_ = 0;           // running calls of optimizers
  bool reading_ = false;     // the thread is reading live state
  int filling_ = 0;          // copies in the making
  size_t cursor_ = 0;        // all earlier parts are taken
  std::deque<Copy> copies_;
  int64_t kept_ = 0, most_kept_ = 0, copied_ = 0;
  std::exception_ptr failure_;
  bool done_ = false, raised_ = false;
  std::once_flag joined_;
  std::thread thread_;  // the last member, because it uses all others
};

// The running saves of this process, whose exit waits for them. A forked child has its own list.
namespace running_saves {

// Any thread. Throws std::bad_alloc.
void add(const std::shared_ptr<AsyncSave>& save);
// Waits for all unfinished saves. Does nothing if memory is short.
void finish_all() noexcept;

}  // namespace running_saves
}  // namespace lowtide
