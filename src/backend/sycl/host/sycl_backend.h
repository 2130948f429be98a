// The SYCL backend: every rule and codec on any device whose driver takes SPIR-V. Tensors and states are USM that the
// queue's device can address; `stream` is an in-order sycl::queue*, nullptr the backend's own queue. Work is queued,
// and no call waits for it except where backend.h says synchronous. One call at a time.
//
// Bits equal the CPU backend's if the device rounds division and square root correctly and keeps denormals; see
// gives_cpu_bits.
#pragma once

#include <sycl/sycl.hpp>

#include <memory>
#include <string>

#include "backend/backend.h"

namespace lowtide::sycl_host {

// target: "gpu", "cpu", or "" for the first of these that exists; with ":" and a number, that device of the same kind
// and platform, from 0, in the platform's context, which they share. queue: selects its device and context; nullptr:
// any device, and its platform's default context. Throws kInvalidArgument for another name or for a queue of another
// kind of device, kUnsupported if there is no such device.
std::unique_ptr<Backend> make_backend(const std::string& target, const sycl::queue* queue);

// The devices that kernels can run on.
std::vector<sycl::device> find_devices();
bool gives_cpu_bits(const sycl::device& device);
const char* target_of(const sycl::device& device);  // "gpu", "cpu", or "other"

}  // namespace lowtide::sycl_host
