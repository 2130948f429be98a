// What kernels read besides tensors (items, starts, dims) goes to the device through slots: pinned host memory, device
// memory of the same size, and the event after which both may be written again. A call waits for the device only when
// so much is under way that another slot would be too many: see kAlways and kMostBytes.
#pragma once

#include <sycl/sycl.hpp>

#include <cstddef>
#include <list>

#include "backend/sycl/host/device_memory.h"

namespace lowtide::sycl_host {

class Uploads {
 public:
  struct Slot {
    UsmBytes host, device;
    size_t bytes = 0;
    sycl::event used;
  };
  static constexpr size_t kAlways = 4;                      // slots, however large
  static constexpr size_t kMostBytes = size_t{4} << 20;     // of all slots where there are more
  static constexpr size_t kSmallestSlot = size_t{4} << 10;  // so of the most slots, too: a step has one for each chunk

  Uploads(const sycl::context& context, const sycl::device& device) : context_(context), device_(device) {}
  // Waits for all that still reads the slots.
  ~Uploads();
  Uploads(const Uploads&) = delete;

  // A slot of at least `bytes` that nothing reads any more. The caller sets `used` to the last event that reads it.
  Slot& acquire(size_t bytes);

 private:
  sycl::context context_;
  sycl::device device_;
  std::list<Slot> slots_;  // the least recently used first
  size_t bytes_ = 0;       // of all
};

}  // namespace lowtide::sycl_host
