// Accesses files through an Env: the owner of a descriptor, and calls that survive signals.
#pragma once

#include <cerrno>
#include <string>
#include <utility>

#include "core/env.h"

namespace lowtide {

constexpr int kMaxRetries = 100;

// Repeats an Env call that a signal has interrupted. The number of attempts is bounded, so a file system that always
// returns EINTR causes an error instead of a hang.
template <typename Do>
auto retry_interrupted(Do call) {
  auto result = call();
  for (int i = 0; i < kMaxRetries && result == -EINTR; ++i) result = call();
  return result;
}

// Owns a descriptor and closes it. A negative descriptor is -errno and is not closed.
class Descriptor {
 public:
  static Descriptor open(Env& env, const std::string& path, int flags, unsigned mode = 0) {
    return {env, retry_interrupted([&] { return env.open(path.c_str(), flags, mode); })};
  }

  Descriptor() = default;
  Descriptor(Env& env, int fd) : env_(&env), fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : env_(other.env_), fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this == &other) return *this;
    close();
    env_ = other.env_;
    fd_ = other.release();
    return *this;
  }
  ~Descriptor() { close(); }

  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  // Returns 0 or -errno. Closing is never retried, because the descriptor is gone even after EINTR.
  int close() {
    const int fd = release(), result = fd >= 0 ? env_->close(fd) : 0;
    return result == -EINTR ? 0 : result;
  }

 private:
  Env* env_ = nullptr;
  int fd_ = -1;
};

}  // namespace lowtide
