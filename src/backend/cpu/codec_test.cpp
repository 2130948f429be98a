// Compares the dynamic8 quantizer of every instruction set with nearest by definition, over every float of [2^-31, 1]
// or a share of them (support/test.h), and over blocks at the edges of the float range.
#include "backend/cpu/cpu_backend.h"
#include "backend/catalog.h"
#include "backend/random_keys.h"
#include "lowtide/optimizer.h"
#include "support/dynamic_map.h"
#include "support/plainest_target.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int64_t kBlock = kBlockElements;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(__SANITIZE_UNDEFINED__) || \
    !defined(__OPTIMIZE__)
constexpr uint32_t kStride = 127;  // sanitized code is slow; a prime stride passes through all low bits
#else
constexpr uint32_t kStride = 1;
#endif

void encode(Backend& backend, bool is_signed, std::vector<float>& values, std::vector<uint8_t>& codes,
            std::vector<float>& scales) {
  codes.resize(values.size());
  scales.resize((values.size() + kBlock - 1) / kBlock);
  CodecItem item{.codec = find_codec("dynamic8"),
                 .is_signed = is_signed,
                 .rows = 1,
                 .row_length = static_cast<int64_t>(values.size()),
                 .codes = codes.data(),
                 .scales = scales.data(),
                 .values = values.data()};
  backend.encode(item, nullptr);
}

// Feeds ascending floats through blocks of 255 floats and a 1, which makes absmax 1 and leaves the values as they are,
// and counts codes that are not nearest.
class Sweep {
 public:
  Sweep(Backend& backend, bool is_signed) : backend_(backend), map_(is_signed) {}

  // Sweeps the floats whose bits are first, first + stride, ... up to last, negated if `negative`.
  void range(uint32_t first, uint32_t last, uint32_t stride, bool negative) {
    for (uint64_t u = first; u <= last;) {
      values_.clear();
      wanted_.clear();
      for (int64_t block = 0; block < kBlocks; ++block) {
        const int64_t one = (7 * block) % kBlock;  // the 1 visits every place in turn
        for (int64_t i = 0; i < kBlock; ++i) {
          if (i == one || u > last) {
            push(1.f, 255);
          } else {
            const float x = std::bit_cast<float>(static_cast<uint32_t>(u) | (negative ? 0x80000000u : 0));
            push(x, walk(x, negative));
            u += stride;
            ++swept;
          }
        }
        if (u > last) break;
      }
      compare();
    }
  }

  int64_t swept = 0, differing = 0, ties_up_differing = 0;

 private:
  static constexpr int64_t kBlocks = 512;

  void push(float x, int code) {
    values_.push_back(x);
    wanted_.push_back(static_cast<uint8_t>(code));
  }

  // Finds nearest(x) from the last value's place, because values ascend in magnitude.
  int walk(float x, bool negative) {
    const auto above = [&](int code) { return x > map_.midpoint[static_cast<size_t>(code)]; };
    if (negative) {
      if (at_ > 254 || above(at_)) at_ = map_.nearest(x);
      while (at_ > 0 && !above(at_ - 1)) --at_;
    } else {
      if (at_ > 0 && !above(at_ - 1)) at_ = map_.nearest(x);
      while (at_ < 255 && above(at_)) ++at_;
    }
    // The control gives a tie to the upper entry, so it differs exactly on the midpoints.
    if (at_ < 255 && x == map_.midpoint[static_cast<size_t>(at_)]) ++ties_up_differing;
    return !map_.is_signed && x > 0 && at_ == 0 ? 1 : at_;
  }

  void compare() {
    encode(backend_, map_.is_signed, values_, codes_, scales_);
    for (const float scale : scales_) ASSERT_EQ(scale, 1.f);
    if (std::memcmp(codes_.data(), wanted_.data(), codes_.size()) == 0) return;
    for (size_t i = 0; i < codes_.size(); ++i)
      if (codes_[i] != wanted_[i] && differing++ < 5)
        ADD_FAILURE() << "value " << values_[i] << " at " << i << ": got code " << int{codes_[i]} << ", wanted "
                      << int{wanted_[i]};
  }

  Backend& backend_;
  DynamicMap map_;
  int at_ = 128;
  std::vector<float> values_;
  std::vector<uint8_t> wanted_, codes_;
  std::vector<float> scales_;
};

TEST(Dynamic8Sweep, IsNearestForEveryFloatOnEveryTarget) {
  constexpr uint32_t kOne = 0x3f800000u, kLow = 0x30000000u;  // 1 and 2^-31
  for (const std::string& target : cpu_targets()) {
    const auto start = std::chrono::steady_clock::now();
    const auto backend = cpu::make_backend(target);
    // Scalar code needs only a coarse sweep: the portable test sweeps it, too. Odd, to pass through all low bits.
    const auto spread = static_cast<uint32_t>(testing::spread()) | 1u;
    const uint32_t stride = kStride * (target == "scalar" ? std::max(spread, 3u) : spread);
    for (const bool is_signed : {false, true}) {
      Sweep sweep(*backend, is_signed);
      const DynamicMap map(is_signed);
      for (const bool negative : {false, true}) {
        if (negative && !is_signed) continue;
        // Zero, denormals and everything else far below the first entry.
        sweep.range(0, kLow - 1, 97 * kStride * spread, negative);
        sweep.range(kLow, kOne, stride, negative);
        if (stride == 1) continue;
        // Every float near every midpoint.
        for (const float middle : map.midpoint) {
          const uint32_t u = std::bit_cast<uint32_t>(std::fabs(middle));
          if ((middle < 0) == negative) sweep.range(u - 300, std::min(u + 300, kOne), 1, negative);
        }
      }
      EXPECT_EQ(sweep.differing, 0) << target;
      // The values included all 255 midpoints (the first unsigned one counts, too: it is > 0, and nearest would be 0).
      EXPECT_GE(sweep.ties_up_differing, 255) << "control: the sweep must hit every midpoint";
      EXPECT_GE(sweep.swept, 150'000'000 / stride);  // 31 binades of 2^23
      figure("{} {}: {} floats, {} codes differ from nearest, {} values on midpoints", target,
             is_signed ? "signed  " : "unsigned", sweep.swept, sweep.differing, sweep.ties_up_differing);
    }
    figure("{} {} s", target, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
}

// Blocks over the whole range of absmax: denormal, smallest normal, FLT_MAX. By definition x = value * (1 / absmax) in
// float32, where 1 / absmax is 0 for a denormal absmax, and scale = absmax.
TEST(Dynamic8Blocks, AreRightForEveryAbsmax) {
  auto rng = seeded("blocks", 12);
  const float limits[] = {std::numeric_limits<float>::denorm_min(),
                          0x1p-140f,
                          0x1.fffffcp-127f,
                          0x1p-126f,
                          0x1.8p-126f,
                          1e-30f,
                          0.75f,
                          3.f,
                          0x1p62f,
                          0x1.fffffep126f,
                          0x1p127f,
                          std::numeric_limits<float>::max()};
  for (const std::string& target : cpu_targets()) {
    const auto backend = cpu::make_backend(target);
    int64_t compared = 0;
    for (const bool is_signed : {false, true}) {
      const DynamicMap map(is_signed);
      for (int round = 0; round < 200; ++round) {
        std::vector<float> values;
        for (const float limit : limits)
          for (int64_t i = 0; i < kBlock; ++i) {
            const double v = i == round ? double{limit} : limit * (rng.uniform() < 0.1 ? 0 : rng.over_binades(-30, -1));
            values.push_back(static_cast<float>(is_signed ? v : std::fabs(v)));
          }
        values.resize(values.size() + kBlock);                          // a block of zeros
        values.resize(values.size() + 1 + static_cast<size_t>(round));  // and a short one
        std::vector<uint8_t> codes;
        std::vector<float> scales;
        encode(*backend, is_signed, values, codes, scales);
        for (size_t i = 0; i < values.size(); ++i) {
          const size_t block = i / kBlock;
          const float absmax = block < std::size(limits) ? limits[block] : 0.f;
          ASSERT_EQ(scales[block], absmax) << target;
          const float inverse = absmax >= 0x1p-126f ? 1.f / absmax : 0.f;
          ASSERT_EQ(int{codes[i]}, map.encode(values[i], inverse))
              << target << " value " << values[i] << ", absmax " << absmax;
          ASSERT_TRUE(is_signed || (codes[i] == 0) == (values[i] == 0)) << target << ": zero means zero, " << values[i];
          ++compared;
        }
        for (size_t block = std::size(limits); block < scales.size(); ++block) ASSERT_EQ(scales[block], 0.f) << target;
      }
    }
    figure("{} {} codes compared, 0 differ", target, compared);
  }
}

// A NaN has the code of 0. Beside an infinity every value has it, because value * inverse is 0 or a NaN; of second
// moments only those that are not above 0.
TEST(Dynamic8Blocks, KeepScaleAndCodesBesideNansAndInfinities) {
  auto rng = seeded("NaNs", 14);
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::string& target : cpu_targets()) {
    const auto backend = cpu::make_backend(target);
    int64_t compared = 0;
    for (const bool is_signed : {false, true}) {
      const DynamicMap map(is_signed);
      for (size_t large = 0; large < static_cast<size_t>(kBlock); ++large)
        for (const float most : {5.f, infinity, -infinity}) {
          std::vector<float> values(static_cast<size_t>(kBlock));
          for (float& x : values) x = static_cast<float>(std::fabs(rng.over_binades(-80, -60)));
          for (float& x : values)
            if (rng.uniform() < 0.1) x = std::copysign(nan, rng.chance(0.5) ? 1.f : -1.f);
          values[large] = most;
          std::vector<uint8_t> codes;
          std::vector<float> scales;
          encode(*backend, is_signed, values, codes, scales);
          ASSERT_EQ(scales[0], std::fabs(most)) << target << ", " << most << " at " << large;
          for (size_t i = 0; i < values.size(); ++i) {
            const float inverse = 1.f / std::fabs(most);
            const int wanted = !std::isnan(values[i] * inverse) ? map.encode(values[i], inverse)
                               : is_signed                      ? 127
                                                                : values[i] > 0;
            ASSERT_EQ(int{codes[i]}, wanted) << target << " value " << values[i] << ", absmax " << most;
            ++compared;
          }
        }
    }
    figure("{} {} codes beside NaNs and infinities compared, 0 differ", target, compared);
  }
}

TEST(Codecs, DecodeEveryCodeOnEveryTarget) {
  for (const std::string& target : cpu_targets()) {
    const auto backend = cpu::make_backend(target);
    for (const bool is_signed : {false, true}) {
      const DynamicMap map(is_signed);
      for (const float scale : {1.f, 0.f, 0x1p-140f, 3.14159f, std::numeric_limits<float>::max()}) {
        std::vector<uint8_t> codes(kBlock);
        for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 37);
        std::vector<float> values(codes.size());
        float scales[] = {scale};
        CodecItem item{find_codec("dynamic8"), is_signed, 1, kBlock, 0, -1, codes.data(), scales, values.data()};
        backend->decode(item, nullptr);
        for (size_t i = 0; i < codes.size(); ++i)
          ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(map.value[codes[i]] * scale))
              << target << " code " << int{codes[i]} << " scale " << scale;
      }
    }
  }
}

// Every instruction set rounds stochastically like scalar code, over floats of [2^-31, 1] of both signs in blocks with
// a 1, and over fewer floats times powers of two, from where squares vanish to where they overflow, and beside NaNs and
// infinities. Lion with beta2 = 0 stores the gradient itself, Adagrad its square.
TEST(StochasticSweep, GivesTheBitsOfScalarCodeOnEveryTarget) {
  constexpr uint32_t kOne = 0x3f800000u, kLow = 0x30000000u;
  std::vector<float> gradients;
  for (int exponent = -126; exponent <= 127; exponent += exponent == -1 || exponent == 0 ? 1 : 5) {
    const float one = std::ldexp(1.f, exponent);
    for (uint32_t u = kLow; u < kOne; u += (exponent == 0 ? 61 : 6007) * kStride) {
      if (gradients.size() % kBlock == 0) gradients.push_back(gradients.size() % (2 * kBlock) ? one : -one);
      gradients.push_back(one * std::bit_cast<float>(u | (gradients.size() % 3 == 0 ? 0x80000000u : 0)));
    }
  }
  for (int i = 0; i < 300; ++i) gradients.push_back(i % 2 ? 0.f : -0.f);
  for (int64_t i = 0; i < 8 * kBlock; ++i) {
    const bool infinite = i > 4 * kBlock && i % 5 == 0;
    const float odd = infinite ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
    gradients.push_back(std::copysign(i % 3 ? 1.f / static_cast<float>(i) : odd, i % 2 ? 1.f : -1.f));
  }
  const int64_t sizes[] = {static_cast<int64_t>(gradients.size())};
  const Layout layout = Layout::make(sizes, {});
  int64_t compared = 0, differing = 0;
  for (const char* rule : {"lion", "adagrad"})
    for (const char* codec : {"dynamic8", "dynamic4", "float8", "bf16"}) {
      const size_t bytes =
          (gradients.size() * static_cast<size_t>(codec_info(find_codec(codec)).format[0].code_bits) + 7) / 8;
      std::vector<std::byte> wanted;
      std::vector<float> wanted_scales;
      std::vector<std::string> targets = cpu_targets();
      std::reverse(targets.begin(), targets.end());  // the scalar reference comes first
      for (const std::string& target : targets) {
        std::vector<float> param(gradients.size()), scales(gradients.size() / kBlock * 2 + 2);
        const bool is_signed = rule == std::string("lion");
        std::vector<std::byte> codes(bytes,
                                     is_signed && codec == std::string("dynamic8") ? std::byte{127} : std::byte{});
        alignas(16) std::byte args[kArgsBytes];
        StepItem item;
        item.param = param.data(), item.grad = gradients.data();
        item.param_layout = item.grad_layout = &layout;
        item.rule = find_rule(rule), item.codec = find_codec(codec);
        rule_info(item.rule).make_args({.lr = 0, .beta1 = 0, .beta2 = 0, .eps = 1}, args);
        item.args = args;
        item.codes[0] = codes.data(), item.scales[0] = scales.data();
        item.stochastic = 1;
        set_keys(9, 1, 0, item);
        cpu::make_backend(target)->step({&item, 1}, 1, false, nullptr);
        if (wanted.empty()) {
          wanted = codes, wanted_scales = scales;
          continue;
        }
        int64_t wrong = 0;
        for (size_t i = 0; i < bytes; ++i) wrong += codes[i] != wanted[i];
        EXPECT_EQ(wrong, 0) << rule << " " << codec << " " << target;
        EXPECT_EQ(scales, wanted_scales) << rule << " " << codec << " " << target;
        compared += static_cast<int64_t>(gradients.size()), differing += wrong;
      }
    }
  figure("{} codes rounded stochastically, {} bytes differ; targets: {}", compared, differing,
         testing::compared_targets().c_str());
}

// Every target rounds bf16 parameters to the same bits: every finite gradient times 1.5, which makes every second one a
// tie, and times factors that make other ties. The parameter starts at 0.
TEST(Bfloat16Parameters, AreRoundedAlikeOnEveryTarget) {
  std::vector<uint16_t> gradients;
  for (uint32_t u = 0; u < 65536; ++u)
    if ((u & 0x7f80u) != 0x7f80u) gradients.push_back(static_cast<uint16_t>(u));
  const int64_t sizes[] = {static_cast<int64_t>(gradients.size())};
  const Layout layout = Layout::make(sizes, {});
  int64_t compared = 0, ties = 0, infinite = 0;
  for (const double lr : {1.5, 1.00390625, 0.3, 1.9921875}) {
    std::vector<uint16_t> wanted;
    for (const uint16_t g : gradients) {
      const float x = 0.f - (static_cast<float>(lr) * std::bit_cast<float>(uint32_t{g} << 16) + 0.f);
      const uint32_t u = std::bit_cast<uint32_t>(x);
      wanted.push_back(static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16));
      ties += (u & 0xffffu) == 0x8000u, infinite += (wanted.back() & 0x7fffu) == 0x7f80u;
    }
    for (const std::string& target : cpu_targets()) {
      std::vector<uint16_t> param(gradients.size());
      std::vector<float> buffer(gradients.size());
      alignas(16) std::byte args[kArgsBytes];
      StepItem item;
      item.param = param.data(), item.grad = gradients.data();
      item.param_dtype = item.grad_dtype = DType::kBF16;
      item.param_layout = item.grad_layout = &layout;
      item.rule = find_rule("sgd"), item.codec = find_codec("fp32"), item.codes[0] = buffer.data();
      rule_info(item.rule).make_args({.lr = lr}, args);
      item.args = args;
      cpu::make_backend(target)->step({&item, 1}, 1, false, nullptr);
      if (target == "scalar") continue;
      compared += static_cast<int64_t>(param.size());
      EXPECT_EQ(param, wanted) << target;
    }
  }
  figure("{} parameters rounded, {} of each target on ties, {} overflow; 0 differ", compared, ties, infinite);
  EXPECT_GT(ties, 10000);
}

}  // namespace
}  // namespace lowtide::testing
