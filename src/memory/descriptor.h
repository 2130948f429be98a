// Files accessed through an Env: the owner of a descriptor, and calls that survive signals.
#pragma once

#include <cerrno>
#include <string>
#include <utility>

#include "core/env.h"

namespace lowtide {

constexpr int kMaxRetries = 100;

// Repeats a call of Env that a signal has interrupted, a bounded number of times: a file system that always answers
// EINTR then causes an error and not a hang.
template <typename Do>
auto retry_interrupted(Do call) {
  auto result = call();
  for (int i = 0; i < kMaxRetries && result == -EINTR; ++i) result = call();
  return result;
}

// Closes the descriptor that it owns. A negative one is a -errno, and is not closed.
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
  // 0 or -errno. Never retried: the descriptor is gone even after EINTR.
  int close() {
    const int fd = release(), result = fd >= 0 ? env_->close(fd) : 0;
    return result == -EINTR ? 0 : result;
  }

 private:
  Env* env_ = nullptr;
  int fd_ = -1;
};

}  // namespace lowtide
