// Error feedback gives the same bits on the device and on the CPU.
#include "device/sign_support.h"

namespace lowtide::testing {
namespace {

constexpr int64_t kBlock = kSignAlignment;  // number of signs that share a scale

std::vector<uint16_t> random_scales(int64_t signs, Rng& rng) {
  std::vector<uint16_t> out(static_cast<size_t>((signs + kBlock - 1) / kBlock));
  for (uint16_t& scale : out) scale = bf16_nearest(rng.chance(0.1) ? 0 : std::fabs(rng.over_binades(-20, 0)));
  return out;
}

Bits as_bits(const void* data, size_t size) {
  const auto* const from = static_cast<const unsigned char*>(data);
  return {from, from + size};
}

// A voter of the second kind of input.
struct Sent {
  Bits bits;
  std::vector<uint16_t> scales;
  uint32_t weight;
};

TEST(DeviceFeedback, GivesTheBitsOfTheCpu) {
  LT_NEEDS_DEVICE();
  auto rng = seeded("feedback on the device", 99);
  TestDevice& device = TestDevice::get();
  const auto cpu = open_backend("cpu", "");
  constexpr int kSteps = 3;
  const int cases = share_of(600);
  int64_t differing = 0, signs = 0, means = 0, without = 0, plus = 0, silent = 0;
  for (int c = 0; c < cases; ++c) {
    const int64_t count = rng.chance(0.2)   ? rng.below(20)
                          : rng.chance(0.9) ? rng.below(3000)
                                            : rng.between(10000, 40000);
    const int64_t first = kBlock * rng.below(3);
    auto codec = static_cast<int>(rng.below(std::ssize(codecs())));
    if (codec_info(codec).has_pairs()) codec = find_codec("dynamic8");  // residuals cannot have pairs
    const CodecInfo& info = codec_info(codec);
    const bool mean = rng.chance(0.4), kept = rng.chance(0.8);
    const auto dtype = static_cast<DType>(rng.below(3));
    const auto misaligned = static_cast<size_t>(rng.below(4));

    // The residual of an earlier encoding, or zeros.
    std::vector<float> residual(static_cast<size_t>(count));
    for (float& r : residual) r = c % 3 ? static_cast<float>(rng.over_binades(-20, 0)) : 0.f;
    Bits codes(static_cast<size_t>(count * info.format[1].code_bits / 8));
    std::vector<float> code_scales(static_cast<size_t>(blocks_per_row(count, kBlockElements)));
    const auto codec_item = [&](void* to, float* scales, float* values) {
      return CodecItem{codec, true, 1, count, 0, -1, to, scales, values};
    };
    cpu->encode(codec_item(codes.data(), code_scales.data(), residual.data()), nullptr);
    Twin kept_codes(codes), kept_scales(as_bits(code_scales.data(), 4 * code_scales.size()));
    Twin bits(random_bytes(misaligned + sign_bytes(first + count) + 1, rng));
    Twin sent(random_bytes(2 * static_cast<size_t>((first + count + kBlock - 1) / kBlock) + 2, rng));

    for (int step = 0; step < kSteps; ++step) {
      FeedbackItem item;
      item.first = first, item.count = count, item.dtype = dtype, item.codec = codec;
      item.value_scale = rng.chance(0.5) ? 1.f : static_cast<float>(rng.over_binades(-4, 0));
      std::vector<std::byte> values(mean ? 0 : static_cast<size_t>(count * dtype_bytes(dtype)));
      for (int64_t i = 0; !mean && i < count; ++i)
        put(values, dtype, i, rng.chance(0.05) || (i / kBlock) % 4 == 3 ? 0 : rng.over_binades(-14, 2));
      std::vector<Sent> voters;
      for (int64_t v = rng.between(1, 9); mean && v > 0; --v)
        voters.push_back({random_bytes(sign_bytes(first + count), rng), random_scales(first + count, rng),
                          static_cast<uint32_t>(v == 1            ? 1
                                                : rng.chance(0.5) ? rng.below(4)
                                                                  : rng.below(100000000))});
      const GuardedBytes values_there(values.data(), values.size());
      std::deque<GuardedBytes> rows_there;
      std::vector<const std::byte*> rows, device_rows;
      std::vector<const uint16_t*> scales, device_scales;
      std::vector<uint32_t> weights;
      for (Sent& of : voters) {
        rows.push_back(of.weight ? bytes(of.bits) : nullptr), scales.push_back(of.weight ? of.scales.data() : nullptr);
        const auto& row = rows_there.emplace_back(of.bits.data(), of.bits.size());
        const auto& scale = rows_there.emplace_back(of.scales.data(), 2 * of.scales.size());
        device_rows.push_back(of.weight ? row.data() : nullptr);
        device_scales.push_back(of.weight ? reinterpret_cast<const uint16_t*>(scale.data()) : nullptr);
        weights.push_back(of.weight);
      }
      item.values = values.data(), item.ballots = rows, item.ballot_scales = scales, item.weights = weights;
      item.codes = kept ? kept_codes.cpu.data() : nullptr;
      item.scales = kept && info.scaled ? reinterpret_cast<float*>(kept_scales.cpu.data()) : nullptr;
      item.bits = bytes(bits.cpu) + misaligned, item.bit_scales = reinterpret_cast<uint16_t*>(sent.cpu.data());
      if (mean) item.values = nullptr;
      if (count || mean) cpu->feedback({&item, 1}, 1, nullptr);

      item.values = values_there.data(), item.ballots = device_rows, item.ballot_scales = device_scales;
      item.codes = kept ? kept_codes.device.data() : nullptr;
      item.scales = item.scales ? reinterpret_cast<float*>(kept_scales.device.data()) : nullptr;
      item.bits = bits.device.data() + misaligned, item.bit_scales = reinterpret_cast<uint16_t*>(sent.device.data());
      if (count || mean) device.backend->feedback({&item, 1}, 1, device.queue);
      differing += kept_codes.differing() + kept_scales.differing() + bits.differing() + sent.differing();

      signs += count;
      for (int64_t i = first; i < first + count; ++i)
        plus += sign_of(bits.cpu, static_cast<int64_t>(8 * misaligned) + i);
      for (int64_t block = first / kBlock; block * kBlock < first + count; ++block) {
        const auto at = static_cast<size_t>(2 * block);
        silent += sent.cpu[at] == 0 && sent.cpu[at + 1] == 0;
      }
      means += mean, without += !kept;
    }
  }
  figure(
      "{} residuals in {} steps each, {} signs, {} +, {} steps on means of voters, {} without residual, {} blocks of "
      "scale 0: {} bits differ from the CPU's",
      cases, kSteps, signs, plus, means, without, silent, differing);
  EXPECT_EQ(differing, 0);
  EXPECT_GT(silent, share_of(20));
  EXPECT_GT(plus, signs / 3);
  EXPECT_LT(plus, signs * 3 / 4);
}

}  // namespace
}  // namespace lowtide::testing
