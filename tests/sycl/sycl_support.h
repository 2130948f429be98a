// Step cases in memory of the SYCL CPU device, so that a backend that touched host memory by mistake would be seen.
#pragma once

#include <gtest/gtest.h>
#include <sycl/sycl.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/registry.h"
#include "lowtide/error.h"
#include "support/device_case.h"
#include "support/step_case.h"
#include "support/test.h"

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

// A copy of host memory on the device, between guards: a kernel that writes beyond it is seen.
class DeviceBytes {
 public:
  static constexpr size_t kGuard = 256;
  static constexpr unsigned char kPoison = 0xc5;
  static inline int64_t guards_checked = 0;

  DeviceBytes(const void* host, size_t bytes, sycl::queue& queue) : bytes_(bytes), queue_(queue) {
    if (!bytes) return;
    memory_ = sycl::malloc_device<std::byte>(bytes + 2 * kGuard, queue);
    const std::vector<unsigned char> poison(bytes + 2 * kGuard, kPoison);
    queue_.memcpy(memory_, poison.data(), poison.size()).wait();
    put(host);
  }
  ~DeviceBytes() {
    if (memory_) sycl::free(memory_, queue_);
  }
  DeviceBytes(DeviceBytes&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), bytes_(other.bytes_), queue_(other.queue_) {}
  std::byte* data() const { return memory_ ? memory_ + kGuard : nullptr; }
  void put(const void* host) {
    if (bytes_) queue_.memcpy(data(), host, bytes_).wait();
  }
  void get(void* host) {
    if (bytes_) queue_.memcpy(host, data(), bytes_).wait();
    EXPECT_TRUE(guards_are_whole());
  }
  bool guards_are_whole() {
    if (!bytes_) return true;
    std::vector<unsigned char> guards(2 * kGuard);
    queue_.memcpy(guards.data(), memory_, kGuard);
    queue_.memcpy(guards.data() + kGuard, data() + bytes_, kGuard).wait();
    guards_checked += 2;
    return std::all_of(guards.begin(), guards.end(), [](unsigned char byte) { return byte == kPoison; });
  }

 private:
  std::byte* memory_ = nullptr;
  size_t bytes_;
  sycl::queue queue_;
};

using DeviceCase = DeviceCaseOf<DeviceBytes>;

}  // namespace lowtide::testing
