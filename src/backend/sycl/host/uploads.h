// The upload buffers (kernels/upload_buffers.h) of one device of one context.
#pragma once

#include <sycl/sycl.hpp>

#include <cstddef>

#include "backend/kernels/upload_buffers.h"
#include "backend/sycl/host/device_memory.h"

namespace lowtide::sycl_host {

struct UploadMemory {
  struct Buffer {
    UsmBytes host, device;
    size_t bytes = 0;
    sycl::event used;
  };

  sycl::context context;
  sycl::device device;

  static bool is_done(const Buffer& buffer) {
    return buffer.used.get_info<sycl::info::event::command_execution_status>() ==
           sycl::info::event_command_status::complete;
  }
  static void wait(Buffer& buffer) { buffer.used.wait(); }
  static void wait_at_end(Buffer& buffer) noexcept {
    try {
      buffer.used.wait();
    } catch (const sycl::exception&) {  // a lost device reads nothing
    }
  }
  void allocate(Buffer& buffer, size_t bytes) const {
    buffer.host = sycl_host::allocate(bytes, context, device, sycl::usm::alloc::host);
    buffer.device = sycl_host::allocate(bytes, context, device, sycl::usm::alloc::device);
  }
};

using Uploads = kernels::UploadBuffers<UploadMemory>;

}  // namespace lowtide::sycl_host
