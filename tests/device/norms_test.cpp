// Norms on a device are, block by block, the bits of the CPU's.
#include <algorithm>
#include <cstring>

#include "device/device_support.h"

namespace lowtide {
namespace {

using testing::DeviceCase;
using testing::GuardedBytes;
using testing::Rng;
using testing::StepCase;
using testing::TestDevice;

std::vector<int> norm_rules() {
  std::vector<int> found;
  for (int rule = 0; rule < std::ssize(rules()); ++rule)
    if (rule_info(rule).norms) found.push_back(rule);
  return found;
}

int any_master(Rng& rng) { return static_cast<int>(rng.below(std::ssize(masters()))); }

int64_t blocks_of(const StepItem& item) {
  return item.blocks >= 0 ? item.blocks : item.param_layout->blocks(kBlockElements) - item.first_block;
}

// Compares norms here and on the device, which must not change the cases.
struct Compared {
  int64_t blocks = 0, differing = 0, changed = 0;

  void run(std::vector<StepCase>& cases) {
    TestDevice& device = TestDevice::get();
    const std::vector<StepCase> before = cases;
    std::vector<DeviceCase> there;
    for (StepCase& c : cases) there.emplace_back(c);
    std::vector<StepItem> on_cpu, on_device;
    int64_t count = 0;
    for (size_t i = 0; i < cases.size(); ++i) {
      on_cpu.push_back(cases[i].item()), on_device.push_back(there[i].item());
      count += blocks_of(on_cpu.back());
    }
    std::vector<BlockNorms> wanted(static_cast<size_t>(count)), got(wanted.size());
    if (count) std::memset(static_cast<void*>(got.data()), 0xa5, got.size() * sizeof got[0]);
    open_backend("cpu", "")->norms(on_cpu, 1, wanted, nullptr);
    device.backend->norms(on_device, 1, got, device.queue);
    blocks += count;
    differing += testing::differing_bytes(reinterpret_cast<const std::byte*>(got.data()),
                                          reinterpret_cast<const std::byte*>(wanted.data()),
                                          static_cast<int64_t>(got.size() * sizeof got[0]));
    for (size_t i = 0; i < cases.size(); ++i) {
      there[i].fetch();
      changed += differing_bytes(cases[i], before[i]);
    }
  }
};

TEST(DeviceNorms, GiveTheBitsOfTheCpu) {
  LT_NEEDS_DEVICE();
  auto rng = testing::seeded("norms on the device", 36);
  Compared of;
  int64_t calls = 0;
  for (const int rule : norm_rules())
    for (int codec = 0; codec < std::ssize(codecs()); ++codec)
      for (const int pair : {0, 4, 8, 5}) {
        std::vector<std::pair<int64_t, int64_t>> shapes = {{0, 5}, {3, 0}, {1, 1}, {2, 256}, {1, 256 * 20 + 77}};
        shapes.emplace_back(rng.between(2, 40), rng.between(1, 255));
        shapes.emplace_back(rng.between(2, 5), rng.between(257, 1200));
        std::vector<StepCase> cases;
        for (const auto& [rows, length] : shapes) {
          cases.emplace_back(rule, codec, static_cast<DType>(pair / 3), static_cast<DType>(pair % 3), rows, length,
                             rng);
          cases.back().set_master(any_master(rng), rng);
        }
        // Squares of some are no floats.
        for (int64_t i = 0; pair == 0 && i < cases.back().layout.numel; ++i)
          testing::put(cases.back().param, DType::kF32, i, rng.over_binades(-149, 127));
        of.run(cases);
        ++calls;
      }
  EXPECT_EQ(of.differing, 0);
  EXPECT_EQ(of.changed, 0);
  std::printf("%lld calls, %lld blocks, %lld bytes differ; %lld guards whole\n", static_cast<long long>(calls),
              static_cast<long long>(of.blocks), static_cast<long long>(of.differing),
              static_cast<long long>(GuardedBytes::guards_checked));
}

// Items of all kinds in one call, in random order: each block's norms are at its item's place.
TEST(DeviceNorms, OneCallTakesItemsOfAllKinds) {
  LT_NEEDS_DEVICE();
  auto rng = testing::seeded("mixed norms", 37);
  const std::vector<int> of = norm_rules();
  std::vector<StepCase> cases;
  for (int i = 0; i < testing::share_of(300); ++i)
    cases.emplace_back(of[static_cast<size_t>(rng.below(std::ssize(of)))],
                       static_cast<int>(rng.below(std::ssize(codecs()))), static_cast<DType>(rng.below(3)),
                       static_cast<DType>(rng.below(3)), rng.between(0, 3), rng.between(1, 700), rng);
  for (StepCase& c : cases) c.set_master(any_master(rng), rng);
  Compared compared;
  compared.run(cases);
  EXPECT_EQ(compared.differing, 0);
  std::vector<StepCase> none;
  compared.run(none);
  std::printf("%zu items, %lld blocks, %lld bytes differ\n", cases.size(), static_cast<long long>(compared.blocks),
              static_cast<long long>(compared.differing));
}

}  // namespace
}  // namespace lowtide
