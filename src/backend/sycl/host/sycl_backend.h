// The SYCL backend runs every rule and codec on any device whose driver accepts SPIR-V. Tensors and states are USM that
// the queue's device can address. `stream` is an in-order sycl::queue*, or nullptr for the backend's own queue. Work is
// queued, and no call waits for it except where backend.h says synchronous. Used by one caller at a time.
//
// Results have the CPU backend's bits if the device rounds division and square root correctly and keeps denormals; see
// gives_cpu_bits().
#pragma once

#include <sycl/sycl.hpp>

#include <memory>
#include <string>

#include "backend/backend.h"

namespace lowtide::sycl_host {

// `target` is "gpu", "cpu", or "" for the first of these that exists. ":" and a number, from 0, select a device of the
// same kind and platform; these devices share the platform's context. `queue` selects its device and context; nullptr
// selects any device and its platform's default context. Throws kInvalidArgument for another name or a queue of another
// kind of device, and kUnsupported if there is no such device.
std::unique_ptr<Backend> make_backend(const std::string& target, const sycl::queue* queue);

// Returns the devices on which kernels can run.
std::vector<sycl::device> find_devices();
bool gives_cpu_bits(const sycl::device& device);
const char* target_of(const sycl::device& device);  // "gpu", "cpu", or "other"

}  // namespace lowtide::sycl_host
