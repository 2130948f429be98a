// Owns the descriptor of an open file, and closes it through its Env.
#pragma once

#include <utility>

#include "core/env.h"

namespace lowtide {

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

}  // namespace lowtide
