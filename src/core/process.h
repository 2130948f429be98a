// This process: the forks that made it, and the signals that its application handles.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <cstdint>

#include "core/error.h"

namespace lowtide {

// The number of forks between the first caller's process and this one. Process ids cannot tell: in a new pid namespace
// the child may have its parent's id. Only the first call can throw kOutOfMemory.
inline int64_t forks() {
  static std::atomic<int64_t> count = 0;
  static const bool counts = [] {
    if (pthread_atfork(nullptr, nullptr, [] { ++count; }) != 0)
      fail(ErrorKind::kOutOfMemory, "no memory to register a handler for forks");
    return true;
  }();
  (void)counts;
  return count;
}

// Blocks all signals in this thread for the object's lifetime; threads created meanwhile inherit the mask. The
// library's threads are created so, which leaves signals to the application's threads.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~AllSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace lowtide
