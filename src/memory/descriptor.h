// Files by way of an Env: the owner of a descriptor, and calls that a signal has interrupted.
#pragma once

#include <cerrno>
#include <utility>

#include "core/env.h"

namespace lowtide {

// Closes the descriptor that it owns.
class Descriptor {
 public:
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

 private:
  void close() {
    if (fd_ >= 0) env_->close(fd_);
  }

  Env* env_ = nullptr;
  int fd_ = -1;
};

constexpr int kMaxRetries = 100;

// Repeats a call of Env that a signal has interrupted: boundedly, so that a file system that only ever answers EINTR
// becomes an error and not a hang.
template <typename Do>
auto retry_interrupted(Do call) {
  auto result = call();
  for (int i = 0; i < kMaxRetries && result == -EINTR; ++i) result = call();
  return result;
}

}  // namespace lowtide
