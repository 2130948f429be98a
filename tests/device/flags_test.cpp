// All options of an item together, at random: gradient scale, stochastic rounding and its keys, parts of parameters,
// strided gradients, non-finite gradients.
#include "device/device_support.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

struct Tally {
  int64_t cases = 0, parts = 0, strided = 0, stochastic = 0, scaled = 0, nonfinite = 0;
  int64_t bytes = 0, differing = 0, nans = 0, still = 0;
};

struct Extras {
  float grad_scale;
  uint32_t stochastic, key[kMaxStates][2];
  int64_t first_block, blocks;
  Layout grad_layout;

  void set(StepItem& item, const Layout* layout) const {
    item.grad_scale = grad_scale, item.stochastic = stochastic, item.grad_layout = layout;
    std::memcpy(item.key, key, sizeof key);
    item.first_block = first_block, item.blocks = blocks;
    const int64_t begin = elements_before_block(item.param_layout->row_length, first_block, kBlockElements);
    for (int k = 0; k < kMaxStates; ++k) {
      const StateFormat& format = format_of(item.rule, item.codec, k);
      if (item.codes[k]) item.codes[k] = static_cast<std::byte*>(item.codes[k]) + format.code_bytes(begin);
      if (item.scales[k]) item.scales[k] += first_block * format.scales;
    }
  }
};

Extras draw(StepCase& c, Rng& rng, Tally& tally) {
  Extras x{};
  x.grad_scale = rng.chance(0.5) ? 1.f : static_cast<float>(rng.over_binades(-10, 3));
  x.stochastic = rng.chance(0.5) ? static_cast<uint32_t>(rng.between(1, 3)) : 0;
  for (auto& key : x.key) key[0] = static_cast<uint32_t>(rng.next()), key[1] = static_cast<uint32_t>(rng.next());
  const int64_t blocks = c.layout.blocks(kBlockElements);
  x.blocks = -1;
  if (blocks > 1 && rng.chance(0.5)) {
    x.first_block = rng.below(blocks);
    x.blocks = rng.chance(0.3) ? -1 : rng.between(0, blocks - x.first_block);
    ++tally.parts;
  }
  // The gradient is a transposed view, or one gradient for all rows.
  x.grad_layout = c.layout;
  if (c.layout.numel && rng.chance(0.5)) {
    const int64_t rows = c.layout.numel / c.layout.row_length;
    const int64_t sizes[] = {rows, c.layout.row_length}, strides[] = {rng.chance(0.3) ? 0 : 1, rows};
    x.grad_layout = Layout::make(sizes, strides);
    ++tally.strided;
  }
  tally.stochastic += x.stochastic != 0, tally.scaled += x.grad_scale != 1;
  return x;
}

// Adds no NaN if states have scales: even the CPU's targets disagree on the codes of a block with a NaN.
void spoil(StepCase& c, Rng& rng) {
  const bool scaled = codec_info(c.codec).scaled;
  const int kinds = scaled ? 3 : 4;
  // RMSprop's momentum, Schedule-Free's z - y and Prodigy's p - p0 turn infinity / infinity into a NaN.
  const std::string rule = rule_info(c.rule).name;
  const bool divides = scaled && (rule == "schedulefree" || rule == "prodigy" ||
                                  (rule.find("rmsprop") == 0 && rule.find("momentum") != std::string::npos));
  const double bad[] = {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(), 0x1p100,
                        std::nan("")};
  for (int64_t n = 1 + c.layout.numel / 100; n > 0; --n)
    put(c.grad, c.grad_dtype, rng.below(c.layout.numel),
        divides ? (c.grad_dtype == DType::kF16 ? 6e4 : 0x1p100) : bad[rng.below(kinds)]);
}

// Returns the bytes of a parameter that differ. Any two NaNs are equal: their payload and sign are undefined.
int64_t differing_numbers(const StepCase& a, const StepCase& b, int64_t& nans) {
  int64_t bad = 0;
  const auto compare = [&](const void* x, const void* y, DType type, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const bool both = std::isnan(element(x, type, i)) && std::isnan(element(y, type, i));
      const int64_t size = dtype_bytes(type);
      nans += both;
      if (!both)
        bad += differing_bytes(static_cast<const char*>(x) + i * size, static_cast<const char*>(y) + i * size, size);
    }
  };
  compare(a.param.data(), b.param.data(), a.param_dtype, a.layout.numel);
  const CodecInfo& codec = codec_info(a.codec);
  for (int k = 0; k < kMaxStates; ++k) {
    const auto bytes = static_cast<int64_t>(a.codes[k].size());
    if (codec.scaled)
      bad += differing_bytes(a.codes[k].data(), b.codes[k].data(), bytes);
    else
      compare(a.codes[k].data(), b.codes[k].data(), codec.format[1].code_bits == 32 ? DType::kF32 : DType::kBF16,
              bytes / (codec.format[1].code_bits / 8));
    compare(a.scales[k].data(), b.scales[k].data(), DType::kF32, static_cast<int64_t>(a.scales[k].size()));
  }
  return bad;
}

// Shapes at the edges of blocks, and random ones.
std::pair<int64_t, int64_t> shape(Rng& rng) {
  constexpr int64_t kLengths[] = {1, 2, 255, 256, 257, 511, 512, 513, 1024};
  return {rng.between(1, 5), rng.chance(0.5) ? kLengths[rng.below(std::size(kLengths))] : rng.between(1, 1500)};
}

void run(bool with_nonfinite, int rounds, uint64_t seed, const char* name) {
  auto rng = seeded(name, seed);
  TestDevice& device = TestDevice::get();
  const auto cpu = open_backend("cpu", "");
  Tally tally;
  int64_t grid = 0;
  for (const int rule : tested_rules())
    for (int codec = 0; codec < static_cast<int>(codecs().size()); ++codec)
      for (int pair = 0; pair < 9; ++pair)
        for (int round = 0; round < rounds; ++round) {
          if (!in_share(grid++)) continue;
          ++tally.cases;
          const auto [rows, length] = shape(rng);
          StepCase wanted(rule, codec, static_cast<DType>(pair / 3), static_cast<DType>(pair % 3), rows, length, rng);
          const Extras extras = draw(wanted, rng, tally);
          if (with_nonfinite) spoil(wanted, rng), ++tally.nonfinite;
          StepCase got = wanted;
          const StepCase before = wanted;
          StepItem item = wanted.item();
          extras.set(item, &extras.grad_layout);
          cpu->step({&item, 1}, 1, false, nullptr);
          DeviceCase on_device(got);
          item = on_device.item();
          extras.set(item, &extras.grad_layout);
          device.backend->step({&item, 1}, 1, false, device.queue);
          on_device.fetch();
          const int64_t bad =
              with_nonfinite ? differing_numbers(got, wanted, tally.nans) : differing_bytes(got, wanted);
          if (bad)
            ADD_FAILURE() << rule_info(rule).name << " " << codec_info(codec).name << " pair " << pair << ", " << rows
                          << " x " << length << ", stochastic " << extras.stochastic << ", scale " << extras.grad_scale
                          << ": " << bad << " bytes";
          tally.differing += bad, tally.bytes += got.bytes();
          tally.still += differing_bytes(got, before) == 0;
        }
  EXPECT_EQ(tally.differing, 0);
  EXPECT_LT(tally.still, tally.cases / 4) << "control: steps must change something";
  EXPECT_EQ(tally.nans > 0, with_nonfinite) << "control";
  figure(
      "{} cases ({} parts, {} strided gradients, {} stochastic, {} scaled, {} with NaN or infinity): {} bytes, {} "
      "differ; {} NaN on both sides",
      tally.cases, tally.parts, tally.strided, tally.stochastic, tally.scaled, tally.nonfinite, tally.bytes,
      tally.differing, tally.nans);
}

TEST(DeviceFlags, GiveTheBitsOfTheCpu) {
  LT_NEEDS_DEVICE();
  run(false, 12, 50, "flags");
}

TEST(DeviceFlags, GiveTheNumbersOfTheCpuWhereGradientsAreNotFinite) {
  LT_NEEDS_DEVICE();
  run(true, 3, 51, "not finite steps");
}

}  // namespace
}  // namespace lowtide::testing
