// Step cases in a device's memory, so that a backend that touches host memory by mistake is caught. LOWTIDE_TEST_DEVICE
// names the device as BACKEND[=TARGET]: sycl=cpu or cuda, for example.
#pragma once

#include "backend/registry.h"
#include "support/device_case.h"
#include "support/step_case.h"
#include "support/test.h"
#include "support/tested_rules.h"

namespace lowtide::testing {

// The backend and its own queue, or null and the reason.
struct TestDevice {
  std::string name, target, missing;
  std::unique_ptr<Backend> backend;
  void* queue = nullptr;

  static TestDevice& get() {
    static TestDevice device = [] {
      TestDevice made;
      const char* const set = std::getenv("LOWTIDE_TEST_DEVICE");
      const std::string text = set ? set : "";
      made.name = text.substr(0, text.find('='));
      if (made.name.size() < text.size()) made.target = text.substr(made.name.size() + 1);
      if (text.empty()) {
        made.missing = "LOWTIDE_TEST_DEVICE names no device, as sycl=cpu or cuda";
        return made;
      }
      try {
        made.backend = open_backend(made.name, made.target);
        made.queue = made.backend->device()->make_queue();
      } catch (const Error& error) {
        made.missing = error.what();
      }
      return made;
    }();
    return device;
  }
  std::unique_ptr<Backend> open() const { return open_backend(name, target); }
  void wait() const { backend->device()->host_wait(backend->device()->record(queue)); }
};

// Skips the test without a device, or fails it if LOWTIDE_TEST_DEVICE_NEEDED is set.
#define LT_NEEDS_DEVICE()                                                                        \
  if (!TestDevice::get().backend) {                                                              \
    if (std::getenv("LOWTIDE_TEST_DEVICE_NEEDED")) FAIL() << testing::TestDevice::get().missing; \
    GTEST_SKIP() << testing::TestDevice::get().missing;                                          \
  }

// A copy of host memory on the device, between guards that catch a kernel that writes outside.
class GuardedBytes {
 public:
  static constexpr size_t kGuard = 256;
  static constexpr unsigned char kPoison = 0xc5;
  static inline int64_t guards_checked = 0;

  GuardedBytes(const void* host, size_t bytes) : bytes_(bytes) {
    if (!bytes) return;
    memory_ = lowtide::DeviceBytes(device(), MemoryKind::kDevice, static_cast<int64_t>(bytes + 2 * kGuard));
    std::vector<unsigned char> start(bytes + 2 * kGuard, kPoison);
    if (host) std::copy_n(static_cast<const unsigned char*>(host), bytes, start.data() + kGuard);
    copy(memory_.data(), start.data(), start.size());
  }
  GuardedBytes(GuardedBytes&&) noexcept = default;
  std::byte* data() const { return memory_.data() ? memory_.data() + kGuard : nullptr; }
  void put(const void* host) {
    if (bytes_) copy(data(), host, bytes_);
  }
  void get(void* host) {
    if (!bytes_) return;
    std::vector<unsigned char> all(bytes_ + 2 * kGuard);
    copy(all.data(), memory_.data(), all.size());
    std::copy_n(all.data() + kGuard, bytes_, static_cast<unsigned char*>(host));
    EXPECT_TRUE(are_whole(all));
  }
  bool guards_are_whole() {
    if (!bytes_) return true;
    std::vector<unsigned char> all(bytes_ + 2 * kGuard);
    copy(all.data(), memory_.data(), all.size());
    return are_whole(all);
  }

 private:
  static Device& device() { return *TestDevice::get().backend->device(); }
  static void copy(void* to, const void* from, size_t bytes) {
    device().copy(TestDevice::get().queue, to, from, static_cast<int64_t>(bytes));
    TestDevice::get().wait();
  }
  static bool are_whole(const std::vector<unsigned char>& all) {
    guards_checked += 2;
    const auto whole = [](unsigned char byte) { return byte == kPoison; };
    return std::all_of(all.begin(), all.begin() + kGuard, whole) && std::all_of(all.end() - kGuard, all.end(), whole);
  }

  lowtide::DeviceBytes memory_;
  size_t bytes_;
};

using DeviceCase = DeviceCaseOf<GuardedBytes>;

}  // namespace lowtide::testing
