// Fills on the device set memory of any length and alignment, and nothing next to it.
#include "device/device_support.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

TEST(DeviceFill, SetsWhatItIsToldAndNothingElse) {
  LT_NEEDS_DEVICE();
  auto rng = seeded("fill", 61);
  TestDevice& tested = TestDevice::get();
  Device& device = *tested.backend->device();
  const int cases = share_of(400);
  int64_t differing = 0, set = 0, changed = 0;
  for (int i = 0; i < cases; ++i) {
    const int64_t width = rng.chance(0.5) ? 1 : 4;
    const int64_t begin = rng.below(40) * width, count = rng.chance(0.1) ? rng.between(70000, 90000) : rng.below(600);
    const auto pattern = static_cast<uint32_t>(rng.next());
    std::vector<unsigned char> bytes(static_cast<size_t>(begin + count * width + rng.below(40)) + 1);
    for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(rng.next());
    std::vector<unsigned char> wanted = bytes, got = bytes;
    for (int64_t n = 0; n < count; ++n) std::memcpy(&wanted[static_cast<size_t>(begin + n * width)], &pattern, width);
    GuardedBytes memory(bytes.data(), bytes.size());
    device.fill(i % 2 ? tested.queue : nullptr, memory.data() + begin, pattern, static_cast<int>(width), count);
    device.host_wait(device.record(i % 2 ? tested.queue : nullptr));
    memory.get(got.data());
    set += count;
    for (size_t b = 0; b < bytes.size(); ++b) differing += got[b] != wanted[b], changed += wanted[b] != bytes[b];
  }
  figure("{} fills of {} elements, {} bytes changed, {} differ", cases, set, changed, differing);
  EXPECT_EQ(differing, 0);
  EXPECT_GT(changed, set / 2);
}

TEST(DeviceFill, RefusesOtherPatterns) {
  LT_NEEDS_DEVICE();
  TestDevice& tested = TestDevice::get();
  Device& device = *tested.backend->device();
  alignas(8) unsigned char bytes[16] = {};
  for (const auto& [offset, width] : {std::pair{0, 2}, {0, 8}, {1, 4}, {2, 4}})
    expect_refusal([&, at = bytes + offset, w = width] { device.fill(nullptr, at, 1, w, 1); }, "wanted 1 byte, or 4");
}

}  // namespace
}  // namespace lowtide::testing
