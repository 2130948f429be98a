// What kernels read besides tensors (items, starts, dims) goes to the device through slots: pinned host memory, device
// memory of the same size, and the event after which both may be written again. A step therefore waits for the device
// only when four earlier ones are still under way.
#pragma once

#include <sycl/sycl.hpp>

#include <cstddef>
#include <vector>

#include "backend/sycl/host/device_memory.h"

namespace lowtide::sycl_host {

class Uploads {
 public:
  struct Slot {
    UsmBytes host, device;
    size_t bytes = 0;
    sycl::event used;
  };

  Uploads(const sycl::context& context, const sycl::device& device) : context_(context), device_(device) {}
  // Waits for all that still reads the slots.
  ~Uploads();
  Uploads(const Uploads&) = delete;

  // A slot of at least `bytes` that nothing reads any more. The caller sets `used` to the last event that reads it.
  Slot& acquire(size_t bytes);

 private:
  static constexpr size_t kMostSlots = 4;
  sycl::context context_;
  sycl::device device_;
  std::vector<Slot> slots_;
  size_t oldest_ = 0;
};

}  // namespace lowtide::sycl_host
