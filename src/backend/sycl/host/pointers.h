// Which memory kernels can be given: USM of the queue's context, unless the device can address all of the process's.
#pragma once

#include <sycl/sycl.hpp>

#include "backend/kernels/pointer_check.h"
#include "core/error.h"

namespace lowtide::sycl_host {

class PointerCheck final : public kernels::PointerCheck {
 public:
  // any: the device can address all memory of the process.
  PointerCheck(const sycl::context& context, bool any) : kernels::PointerCheck(any), context_(context) {}
  PointerCheck(const sycl::context& context, const sycl::device& device)
      : PointerCheck(context, device.has(sycl::aspect::usm_system_allocations)) {}

 private:
  void check(const void* data, const char* what, size_t index) const override {
    if (sycl::get_pointer_type(data, context_) != sycl::usm::alloc::unknown) return;
    fail(ErrorKind::kInvalidArgument,
         "got %s of item %zu at %p, which is no memory of the queue's SYCL context; wanted USM (sycl::malloc_device, "
         "_host or _shared with that context), as this device cannot address other memory",
         what, index, data);
  }

  sycl::context context_;
};

}  // namespace lowtide::sycl_host
