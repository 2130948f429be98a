// A save that runs beside steps: a thread writes the state as of the call to the file, part by part. Before a step
// changes a part that the thread has not reached, the part is copied; a step that finds no room for the copy waits
// until the thread has written an earlier one. The thread reads live state only between the optimizer's calls.
//
// Memory beyond the lists: kept copies, at most max(copy_bytes, largest part), and the thread's own buffer, the larger
// of the largest part and a piece of the file.
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
#include "core/forks.h"
#include "optim/saved_parts.h"

namespace lowtide {

class AsyncSave {
 public:
  // Captures the current state: waits for queued work, and makes the stores announce changes to the save. Nothing is
  // written yet. The tables' optimizers are in a call, and outlive the thread: each ends with finish(). copy_bytes -1:
  // no limit. Throws kInvalidArgument, kDeviceLost, kIo, kOutOfMemory; then no store announces anything.
  static std::shared_ptr<AsyncSave> begin(const Tables& tables, const std::string& path, const std::string& metadata,
                                          int64_t copy_bytes);
  ~AsyncSave();
  AsyncSave(const AsyncSave&) = delete;
  AsyncSave& operator=(const AsyncSave&) = delete;

  // -- Called by the optimizer, one call at a time. None throws; a failure is the save's.

  // Around each call: the thread does not read state in between.
  void enter() noexcept;
  void leave() noexcept;
  // Call before such state changes: the directly addressable state of a parameter, or all remaining state.
  void before_change(size_t param) noexcept;
  void before_any_change() noexcept;
  // Waits until the file is written or the save has failed. Not between enter() and leave().
  void finish() noexcept;
  // Makes the stores stop announcing changes. Call within a call of the optimizer, once the save is done.
  void let_go(const ParamTable& table) const noexcept;

  // -- Any thread

  bool done() const;
  // Returns true if it finished within that many seconds (below 0: no limit). Throws the error that made the save fail.
  bool wait(double seconds);
  // Throws a failure that wait() has not thrown yet, once; does not wait.
  void raise_unraised();
  // True once the save is done and its failure, if any, has been thrown; always true in a forked child.
  bool is_over() const;
  const std::string& path() const { return writer_.path(); }
  // Bytes of state that steps have copied so far, and the largest amount kept at once.
  int64_t copied_bytes() const;
  int64_t most_kept_bytes() const;
  // Like finish(), but gives up if an optimizer is in a call: the process exits in the middle of it.
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
  std::vector<bool> taken_;  // by part: read or copied, or about to be
  int inside_ = 0;           // running calls of optimizers
  bool reading_ = false;     // the thread is reading live state
  int filling_ = 0;          // copies that are being made
  size_t cursor_ = 0;        // all parts before it are taken
  std::deque<Copy> copies_;
  int64_t kept_ = 0, most_kept_ = 0, copied_ = 0;
  std::exception_ptr failure_;
  bool done_ = false, raised_ = false;
  std::once_flag joined_;
  std::thread thread_;  // the last member, because it uses all others
};

// The saves of this process that run beside steps: its exit waits for them. A forked child has its own list.
namespace running_saves {

// Any thread. Throws std::bad_alloc.
void add(const std::shared_ptr<AsyncSave>& save);
// Waits for all unfinished saves. Does nothing if memory is short.
void finish_all() noexcept;

}  // namespace running_saves
}  // namespace lowtide
