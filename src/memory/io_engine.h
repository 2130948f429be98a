// Reads and writes one file in the background, either with io_uring or with threads that call pread and pwrite.
// Transfers decides what a short or failed request means.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/env.h"

namespace lowtide {

struct IoRequest {
  bool write = false;
  std::byte* memory = nullptr;  // not changed by writes
  int64_t offset = 0, bytes = 0;
  int64_t result = 0;  // bytes transferred or -errno
};

// Used by one thread at a time. No request may be running when an engine is destroyed.
class IoEngine {
 public:
  virtual ~IoEngine() = default;
  // Starts a request. The request and its memory belong to the engine until next() returns the request. At most `depth`
  // requests may run at a time.
  virtual void start(IoRequest* request) noexcept = 0;
  // Returns finished requests in any order, or nullptr if no request is running or, unless `block`, none has finished.
  virtual IoRequest* next(bool block) noexcept = 0;
  virtual const char* name() const = 0;
};

// Returns nullptr if the library was built without liburing, or if the kernel lacks or forbids io_uring.
std::unique_ptr<IoEngine> make_io_uring_engine(int fd, int depth);
// Returns an engine with threads. If no thread can be started, next() executes the requests one by one.
std::unique_ptr<IoEngine> make_thread_engine(Env& env, int fd, int depth);

}  // namespace lowtide
