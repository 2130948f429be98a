// Bad input raises named errors and changes nothing, and the backend works on.
#include "device/device_support.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

TEST(DeviceErrors, OfUnknownTargetsNameThem) {
  LT_NEEDS_DEVICE();
  const TestDevice& device = TestDevice::get();
  for (const char* target : {"tpu", "-1", ":x", "nothing at all"})
    expect_refusal([&] { open_backend(device.name, target); }, target);
}

TEST(DeviceErrors, MoreMemoryThanThereIs) {
  LT_NEEDS_DEVICE();
  Device& device = *TestDevice::get().backend->device();
  for (const MemoryKind kind : {MemoryKind::kDevice, MemoryKind::kPinned, MemoryKind::kShared}) {
    expect_refusal([&] { device.free(device.allocate(kind, int64_t{1} << 50)); }, "1125899906842624 bytes",
                   ErrorKind::kOutOfMemory);
  }
  const Device::Limits limits = device.limits();
  EXPECT_GT(limits.total, 0);
  EXPECT_NE(limits.largest_allocation, 0);  // -1: unknown
  figure("refused 3/3; the device has {} bytes, {} at a time", limits.total, limits.largest_allocation);
  // The backend works on.
  auto rng = seeded("after errors", 43);
  StepCase c(1, 2, DType::kF32, DType::kF32, 3, 300, rng);
  const StepCase before = c;
  DeviceCase on_device(c);
  const StepItem item = on_device.item();
  TestDevice::get().backend->step({&item, 1}, 1, false, TestDevice::get().queue);
  on_device.fetch();
  EXPECT_GT(differing_bytes(c, before), 0);
}

// Control: the guards of all tests here catch one byte outside.
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
}  // namespace lowtide::testing
