// Memory of a SYCL context that frees itself, and the upload buffers (kernels/upload_buffers.h) of one device.
#pragma once

#include <sycl/sycl.hpp>

#include <cstddef>
#include <memory>

#include "backend/kernels/upload_buffers.h"
#include "core/error.h"

namespace lowtide::sycl_host {

struct Free {
  sycl::context context;
  void operator()(std::byte* p) const noexcept {
    try {
      sycl::free(p, context);
    } catch (const sycl::exception&) {  // the device is lost, and so is its memory
    }
  }
};
using UsmBytes = std::unique_ptr<std::byte[], Free>;

// Allocates memory of the kind host (pinned) or device. Throws kOutOfMemory; the runtime only returns a null pointer.
inline UsmBytes allocate(size_t bytes, const sycl::context& context, const sycl::device& device,
                         sycl::usm::alloc kind) {
  UsmBytes memory(static_cast<std::byte*>(sycl::malloc(bytes, device, context, kind)), Free{context});
  if (!memory)
    fail(ErrorKind::kOutOfMemory, "SYCL: could not allocate %zu bytes of %s memory", bytes,
         kind == sycl::usm::alloc::host ? "pinned host" : "device");
  return memory;
}

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
    } catch (const sycl::exception&) {  // a lost device no longer reads
    }
  }
  void allocate(Buffer& buffer, size_t bytes) const {
    buffer.host = sycl_host::allocate(bytes, context, device, sycl::usm::alloc::host);
    buffer.device = sycl_host::allocate(bytes, context, device, sycl::usm::alloc::device);
  }
};

using Uploads = kernels::UploadBuffers<UploadMemory>;

// Bytes on their way to the device, for work that is queued before this object is destroyed. The buffer becomes free
// when `last` is over.
class Upload {
 public:
  // write(host, device) writes `bytes` bytes at `host`; `device` is their future address. `room` is the number of bytes
  // after them, for results.
  template <class Write>
  Upload(sycl::queue& queue, Uploads& uploads, sycl::event& last, size_t bytes, Write&& write, size_t room)
      : buffer_(uploads.acquire(bytes + room)), last_(last) {
    write(host(), device());
    if (bytes) last_ = queue.memcpy(device(), host(), bytes);
  }
  ~Upload() { buffer_.used = last_; }
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;

  std::byte* device() const { return buffer_.device.get(); }
  std::byte* host() const { return buffer_.host.get(); }
  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(device() + offset);
  }

 private:
  Uploads::Buffer& buffer_;
  sycl::event& last_;
};

}  // namespace lowtide::sycl_host
