// Blocks all signals in the library's threads, so that the application's threads handle them.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace lowtide {

// Blocks all signals in this thread for the object's lifetime; threads created meanwhile inherit the mask.
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
