// The slots (kernels/slots.h) of one device of one context.
#pragma once

#include <sycl/sycl.hpp>

#include <cstddef>

#include "backend/kernels/slots.h"
#include "backend/sycl/host/device_memory.h"

namespace lowtide::sycl_host {

struct UploadPlace {
  struct Slot {
    UsmBytes host, device;
    size_t bytes = 0;
    sycl::event used;
  };

  sycl::context context;
  sycl::device device;

  static bool is_done(const Slot& slot) {
    return slot.used.get_info<sycl::info::event::command_execution_status>() ==
           sycl::info::event_command_status::complete;
  }
  static void wait(Slot& slot) { slot.used.wait(); }
  static void wait_at_end(Slot& slot) noexcept {
    try {
      slot.used.wait();
    } catch (const sycl::exception&) {  // a lost device reads nothing
    }
  }
  void allocate(Slot& slot, size_t bytes) const {
    slot.host = sycl_host::allocate(bytes, context, device, sycl::usm::alloc::host);
    slot.device = sycl_host::allocate(bytes, context, device, sycl::usm::alloc::device);
  }
};

using Uploads = kernels::Slots<UploadPlace>;

}  // namespace lowtide::sycl_host
