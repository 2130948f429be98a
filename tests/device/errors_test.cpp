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

// Memory of a caller's cache goes back there, and memory from before to the driver.
TEST(DeviceErrors, DeviceMemoryComesFromACaller) {
  LT_NEEDS_DEVICE();
  struct Lender {
    Device& from = *TestDevice::get().backend->device();
    int64_t left = 1 << 20;
    std::map<void*, int64_t> live;
  } lender;
  const auto lend = [](void* context, int64_t bytes) -> void* {
    auto& self = *static_cast<Lender*>(context);
    if (bytes > self.left) return nullptr;
    void* const memory = self.from.allocate(MemoryKind::kDevice, bytes);
    self.live[memory] = bytes, self.left -= bytes;
    return memory;
  };
  const auto take_back = [](void* context, void* memory) {
    auto& self = *static_cast<Lender*>(context);
    self.left += self.live.at(memory);
    self.live.erase(memory);
    self.from.free(memory);
  };
  const std::unique_ptr<Backend> backend = TestDevice::get().open();
  Device& device = *backend->device();
  const lowtide::DeviceBytes before(device, MemoryKind::kDevice, 1000);
  device.use_allocator({&lender, lend, take_back});
  {
    const lowtide::DeviceBytes there(device, MemoryKind::kDevice, 1 << 19), pinned(device, MemoryKind::kPinned, 1000);
    EXPECT_EQ(lender.live.size(), 1u);
    expect_refusal([&] { device.allocate(MemoryKind::kDevice, 1 << 20); }, "from the caller's allocator",
                   ErrorKind::kOutOfMemory);
    device.use_allocator({});
    const lowtide::DeviceBytes after(device, MemoryKind::kDevice, 1000);
    EXPECT_EQ(lender.live.size(), 1u);
  }
  EXPECT_TRUE(lender.live.empty());
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
