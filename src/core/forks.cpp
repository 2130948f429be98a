#include "core/forks.h"

#include <pthread.h>

#include <atomic>

#include "core/error.h"

namespace lowtide {
namespace {

std::atomic<int64_t> count = 0;

}  // namespace

int64_t forks() {
  static const bool counts = [] {
    if (pthread_atfork(nullptr, nullptr, [] { ++count; }) != 0)
      fail(ErrorKind::kOutOfMemory, "no memory to register a handler for forks");
    return true;
  }();
  (void)counts;
  return count;
}

}  // namespace lowtide
