// For tests of the SYCL backend's own parts: the device of tests/device, which is the CPU's OpenCL device, and its
// queue.
#pragma once

#include <sycl/sycl.hpp>

#include "device/device_support.h"
#include "support/test.h"

namespace lowtide::testing {

inline const int named = setenv("LOWTIDE_TEST_DEVICE", "sycl=cpu", 0);
inline sycl::queue& sycl_queue() { return *static_cast<sycl::queue*>(TestDevice::get().queue); }

}  // namespace lowtide::testing
