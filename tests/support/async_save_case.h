// For tests of saves beside steps: an Env with slow checkpoint files that measures memory.
#pragma once

#include "core/env.h"
#include "support/checkpoint_case.h"
#include "support/faulty_env.h"
#include "support/test.h"

namespace lowtide::testing {

// Delays each write to a checkpoint by `microseconds`, so that steps overtake it.
class SlowEnv : public FaultyEnv {
 public:
  std::atomic<int> microseconds = 0;

  int open(const char* path, int flags, unsigned mode) override {
    const int fd = FaultyEnv::open(path, flags, mode);
    if (fd >= 0 && std::string(path).find(".tmp-") != std::string::npos) {
      const std::lock_guard lock(mutex_);
      checkpoints_.insert(fd);
    }
    return fd;
  }
  int close(int fd) override {
    {
      const std::lock_guard lock(mutex_);
      checkpoints_.erase(fd);
    }
    return FaultyEnv::close(fd);
  }
  int64_t pwrite(int fd, const void* from, int64_t bytes, int64_t offset) override {
    if (const int wait = microseconds; wait > 0 && is_checkpoint(fd))
      std::this_thread::sleep_for(std::chrono::microseconds(wait));
    return FaultyEnv::pwrite(fd, from, bytes, offset);
  }
  int map(size_t bytes, void** memory) override {
    const int result = FaultyEnv::map(bytes, memory);
    int64_t before = most_, now = mapped_bytes();
    while (now > before && !most_.compare_exchange_weak(before, now)) {
    }
    return result;
  }
  // Returns the most bytes mapped at once since the last call.
  int64_t take_most_mapped() { return most_.exchange(mapped_bytes()); }

 private:
  bool is_checkpoint(int fd) {
    const std::lock_guard lock(mutex_);
    return checkpoints_.contains(fd);
  }

  std::mutex mutex_;
  std::set<int> checkpoints_;
  std::atomic<int64_t> most_ = 0;
};

}  // namespace lowtide::testing
