// Compares codec conversions and the search for non-finite gradients on the device with the CPU.
#include "device/device_support.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

// The arrays of a CodecItem.
struct Converted {
  std::vector<std::byte> codes;
  std::vector<float> scales, values;
};

void convert_on_device(CodecItem item, Converted& arrays, bool encode) {
  TestDevice& device = TestDevice::get();
  GuardedBytes codes(arrays.codes.data(), arrays.codes.size());
  GuardedBytes scales(arrays.scales.data(), arrays.scales.size() * 4);
  GuardedBytes values(arrays.values.data(), arrays.values.size() * 4);
  item.codes = codes.data();
  item.scales = reinterpret_cast<float*>(scales.data());
  item.values = reinterpret_cast<float*>(values.data());
  if (encode)
    device.backend->encode(item, device.queue);
  else
    device.backend->decode(item, device.queue);
  codes.get(arrays.codes.data());
  scales.get(arrays.scales.data());
  values.get(arrays.values.data());
}

void convert_on_cpu(CodecItem item, Converted& arrays, bool encode) {
  item.codes = arrays.codes.data(), item.scales = arrays.scales.data(), item.values = arrays.values.data();
  const auto cpu = open_backend("cpu", "");
  if (encode)
    cpu->encode(item, nullptr);
  else
    cpu->decode(item, nullptr);
}

int64_t differing(const Converted& a, const Converted& b) {
  return differing_bytes(a.codes.data(), b.codes.data(), static_cast<int64_t>(a.codes.size())) +
         differing_bytes(a.scales.data(), b.scales.data(), static_cast<int64_t>(a.scales.size() * 4)) +
         differing_bytes(a.values.data(), b.values.data(), static_cast<int64_t>(a.values.size() * 4));
}

// Encodes and decodes values over 60 binades, 5 % of them zero, on both, and compares after each.
void compare_conversions(int codec, bool is_signed, int64_t rows, int64_t length, bool part, Rng& rng, int64_t& bytes,
                         int64_t& bad) {
  const StateFormat& format = codec_info(codec).format[is_signed];
  if (format.code_bits == 4) length += length % 2;
  CodecItem item{.codec = codec, .is_signed = is_signed, .rows = rows, .row_length = length};
  int64_t n = rows * length, blocks = n ? rows * blocks_per_row(length, kBlockElements) : 0;
  if (part && blocks > 1) {
    item.first_block = rng.below(blocks);
    item.blocks = rng.between(1, blocks - item.first_block);
    n = elements_before_block(length, item.first_block + item.blocks, kBlockElements) -
        elements_before_block(length, item.first_block, kBlockElements);
    blocks = item.blocks;
  }
  Converted got;
  got.codes.resize(static_cast<size_t>(format.code_bytes(n)));
  got.scales.resize(static_cast<size_t>(format.scales * blocks));
  got.values.resize(static_cast<size_t>(n));
  for (float& x : got.values) {
    x = rng.chance(0.05) ? 0.f : static_cast<float>(rng.over_binades(-60, 0));
    if (!is_signed) x = std::fabs(x);
  }
  Converted wanted = got;
  for (const bool encode : {true, false}) {
    convert_on_cpu(item, wanted, encode);
    convert_on_device(item, got, encode);
    bad += differing(got, wanted);
    bytes += static_cast<int64_t>(got.codes.size() + 4 * got.scales.size() + 4 * got.values.size());
  }
}

TEST(DeviceCodecs, GiveTheBitsOfTheCpu) {
  LT_NEEDS_DEVICE();
  auto rng = seeded("codecs", 40);
  const int rounds = share_of(30);
  int64_t cases = 0, bytes = 0, bad = 0;
  for (int codec = 0; codec < static_cast<int>(codecs().size()); ++codec)
    for (const bool is_signed : {false, true})
      for (int round = 0; round < rounds; ++round, ++cases)
        compare_conversions(codec, is_signed, round == 0 ? 0 : rng.between(1, 9), rng.between(1, 1500), round % 3 == 0,
                            rng, bytes, bad);
  EXPECT_EQ(bad, 0);
  figure("{} arrays encoded and decoded, {} bytes, {} differ", cases, bytes, bad);
}

// A launch has at most 65536 groups.
TEST(DeviceCodecs, TakeMoreBlocksThanALaunchHasGroups) {
  LT_NEEDS_DEVICE();
  auto rng = seeded("many blocks", 41);
  int64_t bytes = 0, bad = 0;
  const int64_t rows = 65536 * share_of(2) + 3, length = 9;  // one short block a row
  compare_conversions(find_codec("dynamic8"), true, rows, length, false, rng, bytes, bad);
  EXPECT_EQ(bad, 0);
  figure("{} blocks, {} bytes, {} differ", rows, bytes, bad);
}

TEST(DeviceNonfinite, IsFoundWhereTheCpuFindsIt) {
  LT_NEEDS_DEVICE();
  auto rng = seeded("not finite", 42);
  TestDevice& device = TestDevice::get();
  const auto cpu = open_backend("cpu", "");
  const double bad_values[] = {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
                               std::nan(""), 0x1p63, -0x1p62};
  const int64_t rounds = std::max<int64_t>(share_of(300), 90);  // with 90, five sixths are at least 3.5 deviations away
  int64_t found = 0, wrong = 0;
  for (int64_t round = 0; round < rounds; ++round) {
    std::vector<StepCase> cases;
    const int64_t count = rng.between(1, 6);
    for (int64_t i = 0; i < count; ++i)
      cases.emplace_back(2, 0, DType::kF32, static_cast<DType>(rng.below(3)), rng.between(1, 3), rng.between(1, 600),
                         rng);
    for (StepCase& c : cases)
      if (rng.chance(0.3)) put(c.grad, c.grad_dtype, rng.below(c.layout.numel), bad_values[rng.below(5)]);
    const float scale = rng.chance(0.3) ? 0x1p-3f : 1.f;
    std::vector<StepItem> on_cpu, on_device;
    std::vector<DeviceCase> held;
    for (StepCase& c : cases) {
      held.emplace_back(c);
      on_cpu.push_back(c.item());
      on_device.push_back(held.back().item());
      on_cpu.back().grad_scale = on_device.back().grad_scale = scale;
    }
    const int64_t wanted = cpu->first_nonfinite(on_cpu, 1, nullptr);
    wrong += device.backend->first_nonfinite(on_device, 1, device.queue) != wanted;
    found += wanted >= 0;
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(found > rounds / 6 && found < rounds - rounds / 6) << "control: both outcomes happen; found " << found;
  figure("{} calls, {} with a bad gradient, {} wrong", rounds, found, wrong);
}

}  // namespace
}  // namespace lowtide::testing
