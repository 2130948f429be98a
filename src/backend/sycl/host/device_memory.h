// Memory of a SYCL context that frees itself.
#pragma once

#include <sycl/sycl.hpp>

#include <cstddef>
#include <memory>

#include "core/error.h"

namespace lowtide::sycl_host {

struct Free {
  sycl::context context;
  void operator()(std::byte* p) const noexcept {
    try {
      sycl::free(p, context);
    } catch (const sycl::exception&) {  // the device is gone, and its memory with it
    }
  }
};
using UsmBytes = std::unique_ptr<std::byte[], Free>;

// kind: host (pinned) or device. Throws kOutOfMemory; the runtime gives a null pointer instead of an exception.
inline UsmBytes allocate(size_t bytes, const sycl::context& context, const sycl::device& device,
                         sycl::usm::alloc kind) {
  UsmBytes memory(static_cast<std::byte*>(sycl::malloc(bytes, device, context, kind)), Free{context});
  if (!memory)
    fail(ErrorKind::kOutOfMemory, "SYCL: %zu bytes of %s memory could not be had", bytes,
         kind == sycl::usm::alloc::host ? "pinned host" : "device");
  return memory;
}

}  // namespace lowtide::sycl_host
