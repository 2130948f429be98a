// Bad input: named errors, nothing changed, and the backend works on.
#include <cstdio>
#include <string>

#include "device/device_support.h"

namespace lowtide {
namespace {

using testing::DeviceCase;
using testing::GuardedBytes;
using testing::StepCase;
using testing::TestDevice;

TEST(DeviceErrors, OfUnknownTargetsNameThem) {
  LT_NEEDS_DEVICE();
  const TestDevice& device = TestDevice::get();
  for (const char* target : {"tpu", "-1", ":x", "nothing at all"})
    EXPECT_NE(testing::message_of(ErrorKind::kInvalidArgument, [&] { open_backend(device.name, target); }).find(target),
              std::string::npos);
}

TEST(DeviceErrors, MoreMemoryThanThereIs) {
  LT_NEEDS_DEVICE();
  Device& device = *TestDevice::get().backend->device();
  for (const MemoryKind kind : {MemoryKind::kDevice, MemoryKind::kPinned, MemoryKind::kShared}) {
    const std::string message =
        testing::message_of(ErrorKind::kOutOfMemory, [&] { device.free(device.allocate(kind, int64_t{1} << 50)); });
    EXPECT_NE(message.find("1125899906842624 bytes"), std::string::npos) << message;
  }
  const Device::Limits limits = device.limits();
  EXPECT_GT(limits.total, 0);
  EXPECT_NE(limits.largest_allocation, 0);  // -1: not known
  std::printf("refused 3/3; the device has %lld bytes, %lld at a time\n", static_cast<long long>(limits.total),
              static_cast<long long>(limits.largest_allocation));
  // And it works on.
  auto rng = testing::seeded("after errors", 43);
  StepCase c(1, 2, DType::kF32, DType::kF32, 3, 300, rng);
  const StepCase before = c;
  DeviceCase on_device(c);
  const StepItem item = on_device.item();
  TestDevice::get().backend->step({&item, 1}, 1, false, TestDevice::get().queue);
  on_device.fetch();
  EXPECT_GT(differing_bytes(c, before), 0);
}

// Control of the guards of all tests here: one byte beyond is seen.
TEST(DeviceErrors, GuardsSeeOneByte) {
  LT_NEEDS_DEVICE();
  TestDevice& device = TestDevice::get();
  const char text[] = "seven b";
  for (const int at : {-1, 8}) {
    GuardedBytes bytes(text, 8);
    EXPECT_TRUE(bytes.guards_are_whole());
    device.backend->device()->fill(device.queue, bytes.data() + at, 0, 1, 1);
    device.wait();
    EXPECT_FALSE(bytes.guards_are_whole());
  }
}

}  // namespace
}  // namespace lowtide
