// Reads and writes one file while its caller does something else: by io_uring, or by threads with pread and pwrite.
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

// One thread at a time uses an engine. No request may be running when it is destroyed.
class IoEngine {
 public:
  virtual ~IoEngine() = default;
  // The request and its memory belong to the engine until next() returns it; at most `depth` requests at a time.
  virtual void start(IoRequest* request) noexcept = 0;
  // A finished request, in any order; nullptr if none is running or, unless `block`, none has finished.
  virtual IoRequest* next(bool block) noexcept = 0;
  virtual const char* name() const = 0;
};

// nullptr if the library was built without liburing, or the kernel lacks or forbids io_uring.
std::unique_ptr<IoEngine> make_io_uring_engine(int fd, int depth);
// If no thread can be started, next() executes the requests one by one.
std::unique_ptr<IoEngine> make_thread_engine(Env& env, int fd, int depth);

}  // namespace lowtide
