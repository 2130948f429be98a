// Repeats a call of Env that a signal has interrupted: boundedly, so that a file system that only ever answers EINTR
// becomes an error and not a hang.
#pragma once

#include <cerrno>

namespace lowtide {

constexpr int kMaxRetries = 100;

template <typename Do>
auto retry_interrupted(Do call) {
  auto result = call();
  for (int i = 0; i < kMaxRetries && result == -EINTR; ++i) result = call();
  return result;
}

}  // namespace lowtide
