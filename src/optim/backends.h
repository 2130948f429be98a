// Where an optimizer computes: on the CPU, and on a device if its parameters are there.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "lowtide/optimizer.h"

namespace lowtide {

struct Backends {
  // device: where the parameters are, in place of what the options say. Throws kInvalidArgument or kUnsupported.
  Backends(const OptimizerOptions& options, std::unique_ptr<Backend> device);

  // 0: one for each core. Throws kInvalidArgument.
  void set_threads(int n);

  // Zeroes memory where the parameters are, ordered on `stream`.
  void clear(void* at, int64_t bytes, void* stream) const;

  std::unique_ptr<Backend> host;       // converts state that is brought to host memory
  std::unique_ptr<Backend> elsewhere;  // nullptr: the parameters are in host memory
  Backend& at_params;                  // one of the two: it steps
  Device* device;                      // nullptr: the parameters are in host memory
  int threads = 1;
  DeviceAllocator allocator;  // a framework's device memory; empty: the device's own
};

}  // namespace lowtide
