// Step cases in memory of the SYCL CPU device, so that a backend that touched host memory by mistake would be seen.
#pragma once

#include <gtest/gtest.h>
#include <sycl/sycl.hpp>

#include <memory>
#include <string>
#include <vector>

#include "backend/registry.h"
#include "lowtide/error.h"
#include "support/step_case.h"

namespace lowtide::testing {

// The backend on the CPU's OpenCL device, and a queue of the tests; null with the reason if there is none.
struct SyclDevice {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<sycl::queue> queue;
  std::string missing;

  // Opened once: the driver can be named only before the process's first SYCL call.
  static SyclDevice& get() {
    static SyclDevice device = [] {
      SyclDevice made;
      try {
        made.backend = open_backend("sycl", "cpu");
        made.queue = std::make_unique<sycl::queue>(sycl::cpu_selector_v, sycl::property::queue::in_order());
      } catch (const Error& error) {
        made.missing = error.what();
      }
      return made;
    }();
    return device;
  }
};

#define LT_NEEDS_SYCL() \
  if (!SyclDevice::get().backend) GTEST_SKIP() << SyclDevice::get().missing

// A copy of host memory on the device.
class DeviceBytes {
 public:
  DeviceBytes(const void* host, size_t bytes, sycl::queue& queue) : bytes_(bytes), queue_(queue) {
    if (!bytes) return;
    data_ = sycl::malloc_device<std::byte>(bytes, queue);
    put(host);
  }
  ~DeviceBytes() {
    if (data_) sycl::free(data_, queue_);
  }
  DeviceBytes(DeviceBytes&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_), queue_(other.queue_) {}
  std::byte* data() const { return data_; }
  void put(const void* host) {
    if (bytes_) queue_.memcpy(data_, host, bytes_).wait();
  }
  void get(void* host) {
    if (bytes_) queue_.memcpy(host, data_, bytes_).wait();
  }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_;
  sycl::queue queue_;
};

// A step case's arrays on the device; gradients and args are taken from the case at every item().
class DeviceCase {
 public:
  DeviceCase(StepCase& of, sycl::queue& queue)
      : case_(of), param_(of.param.data(), of.param.size(), queue), grad_(of.grad.data(), of.grad.size(), queue) {
    for (int k = 0; k < kMaxStates; ++k) {
      codes_.emplace_back(of.codes[k].data(), of.codes[k].size(), queue);
      scales_.emplace_back(of.scales[k].data(), of.scales[k].size() * sizeof(float), queue);
    }
  }
  StepItem item() {
    StepItem out = case_.item();
    grad_.put(case_.grad.data());
    out.param = param_.data(), out.grad = grad_.data();
    for (size_t k = 0; k < kMaxStates; ++k) {
      out.codes[k] = codes_[k].data();
      out.scales[k] = reinterpret_cast<float*>(scales_[k].data());
    }
    return out;
  }
  // Parameter and state, back into the case.
  void fetch() {
    param_.get(case_.param.data());
    for (size_t k = 0; k < kMaxStates; ++k) {
      codes_[k].get(case_.codes[k].data());
      scales_[k].get(case_.scales[k].data());
    }
  }

 private:
  StepCase& case_;
  DeviceBytes param_, grad_;
  std::vector<DeviceBytes> codes_, scales_;
};

}  // namespace lowtide::testing
