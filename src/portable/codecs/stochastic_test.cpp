// Stochastic rounding on plain floats: every codec gives one of the two codes around a value, and the mean over all
// 65536 random numbers is the value.
#include "support/test.h"

namespace {
#include "portable/portable.h"

using lowtide::testing::Rng;
using lowtide::testing::figure;

template <class C>
const typename C::Tables& tables() {
  static const typename C::Tables all = [] {
    typename C::Tables t;
    if constexpr (requires { C::make_tables(t); }) C::make_tables(t);
    return t;
  }();
  return all;
}

constexpr u32 kRandoms = 65536;

struct Figures {
  int values = 0;
  double worst_bias = 0;  // in units of the codes' distance, times 65536
};

// Tries all random numbers for one value of a block with this scale. They give at most two neighbouring codes.
template <class C, bool kSigned>
void see(float value, BlockScale of, Figures& f) {
  const auto& t = tables<C>();
  const auto decoded = [&](u32 random) {
    return double{
               C::template decode<kSigned>(t, C::template encode_with<kSigned>(t, value, of.inverse, true, random))} *
           of.scale;
  };
  // A larger random number only moves away from zero, so one number separates the two codes.
  const double near = decoded(0), far = decoded(kRandoms - 1);
  u32 low = 0, high = kRandoms - 1;
  while (low < high) {
    const u32 middle = (low + high) / 2;
    if (decoded(middle) == near)
      low = middle + 1;
    else
      high = middle;
  }
  const u32 of_far = near == far ? 0 : kRandoms - low;
  ASSERT_EQ(decoded(near == far ? 0 : low), far) << value << ": a third code";
  ASSERT_LE(std::fabs(near), std::fabs(far)) << value;
  const double mean = near + (far - near) * of_far / kRandoms;
  // If only one code came out, its distance to the next code stands for the gap.
  double gap = std::fabs(far - near);
  if (near == far) {
    const u32 code = static_cast<u32>(C::template encode_with<kSigned>(t, value, of.inverse, true, 0u));
    gap = std::fabs(double{C::template decode<kSigned>(t, code + 1)} * of.scale - near);
    if (code % 128 == 127 || gap == 0)
      gap = std::fabs(near - double{C::template decode<kSigned>(t, code - 1)} * of.scale);
  }
  ++f.values;
  f.worst_bias = std::max(f.worst_bias, std::fabs(mean - double{value}) / gap * kRandoms);
}

// The tolerance is 2 / 65536 of a step: float32 arithmetic on ranks up to 255 rounds four times, by half a unit each.
TEST(StochasticRounding, Dynamic8HasTheValueAsItsMean) {
  Rng rng(31);
  Figures f[2];
  for (int i = 0; i < 40000; ++i) {
    const float x = static_cast<float>(std::fabs(rng.over_binades(-24, 0)));
    if (x <= 0.99296f) {  // the last entry with a negative counterpart
      see<Dynamic8, true>(x, {1.f, 1.f}, f[1]);
      see<Dynamic8, true>(-x, {1.f, 1.f}, f[1]);
    }
    if (x >= 3.2500001e-7f) see<Dynamic8, false>(x, {1.f, 1.f}, f[0]);  // the smallest second moment
  }
  // Values around every entry and every midpoint.
  for (const bool is_signed : {false, true})
    for (u32 i = is_signed ? 128 : 2; i < 256; ++i) {
      const float* const value = tables<Dynamic8>().side[is_signed].value;
      for (const float x : {std::nextafterf(value[i], 0.f), value[i], (value[i] + value[i - 1]) * 0.5f})
        is_signed ? see<Dynamic8, true>(x, {1.f, 1.f}, f[1]) : see<Dynamic8, false>(x, {1.f, 1.f}, f[0]);
    }
  for (const bool is_signed : {false, true}) {
    figure("dynamic8 {}: {} values x {} random numbers, means off by {} / 65536 of a step at most",
           is_signed ? "signed" : "unsigned", f[is_signed].values, kRandoms, f[is_signed].worst_bias);
    EXPECT_LT(f[is_signed].worst_bias, 2);
  }
}

// By definition the least of all lines counts; the table's rows hold the lines that can be least.
TEST(StochasticRounding, Dynamic8TakesTheLeastOfAllLines) {
  int64_t compared = 0, differing = 0;
  for (const bool is_signed : {false, true}) {
    const Dynamic8Table& t = tables<Dynamic8>().side[is_signed];
    constexpr u32 kLast = Dynamic8Table::kLastExponent & Dynamic8Table::kRowMask;
    const float* const entry = t.value + (is_signed ? Dynamic8::kSignedZero : 0);
    const float last = entry[(is_signed ? 128 : 255) - 1];
    for (u32 u = bits(is_signed ? 0x1p-40f : t.lowest); u <= bits(1.f); u += 211) {
      const float x = as_float(u);
      float least = x * t.slope[kLast] + t.intercept[kLast];
      if (x <= last) {
        least = 0x1p30f;
        for (u32 key = Dynamic8Table::kFirstExponent; key < Dynamic8Table::kLastExponent; ++key) {
          const u32 row = key & Dynamic8Table::kRowMask;
          least = std::min(least, x * t.slope[row] + t.intercept[row]);
          least = std::min(least, x * t.joint_slope[row] + t.joint_intercept[row]);
        }
      }
      for (const u32 random : {0u, 1u, 30000u, 65535u}) {
        const u32 got =
            is_signed ? Dynamic8::stochastic_rank<true>(t, x, random) : Dynamic8::stochastic_rank<false>(t, x, random);
        ++compared, differing += got != (truncate(least) + random) >> 16;
      }
    }
  }
  figure("{} ranks, {} are not of the least line", compared, differing);
  EXPECT_EQ(differing, 0);
}

TEST(StochasticRounding, Dynamic8KeepsZeroOneAndTheFloor) {
  const auto& t = tables<Dynamic8>();
  for (u32 random = 0; random < kRandoms; ++random) {
    for (const float zero : {0.f, -0.f}) {
      ASSERT_EQ(Dynamic8::encode_with<true>(t, zero, 1.f, true, random), Dynamic8::kSignedZero);
      ASSERT_EQ(Dynamic8::encode_with<false>(t, zero, 1.f, true, random), 0u);
    }
    ASSERT_EQ(Dynamic8::encode_with<true>(t, 1.f, 1.f, true, random), 255u);
    ASSERT_EQ(Dynamic8::encode_with<true>(t, 0x1.000004p0f, 1.f, true, random), 255u);
    ASSERT_EQ(Dynamic8::encode_with<false>(t, 0x1.000004p0f, 1.f, true, random), 255u);
    ASSERT_EQ(Dynamic8::encode_with<true>(t, -1.f, 1.f, true, random), 0u);  // no entry at -1
    for (const float v : {0x1p-149f, 1e-30f, 1e-7f, 3e-7f}) {
      ASSERT_EQ(Dynamic8::encode_with<false>(t, v, 1.f, true, random), 1u) << v;
      ASSERT_EQ(Dynamic8::encode_with<false>(t, v, 0.f, true, random), 1u) << v;
    }
  }
  figure("{} random numbers: 0 is 0, 1 is 1, and what is above 0 stays so", kRandoms);
}

// The definition of float8, in double.
double float8_value(bool is_signed, u32 code) {
  const u32 magnitude = is_signed ? code & 127 : code, e = magnitude >> 4, m = magnitude & 15;
  const int low = is_signed ? -5 : -13;  // exponent of the smallest normal number
  const double x = e ? std::ldexp(1 + m / 16.0, static_cast<int>(e) - 1 + low) : std::ldexp(m / 16.0, low);
  return is_signed && code & 128 ? -x : x;
}

TEST(Float8, CodesAreThoseOfItsDefinition) {
  const auto& t = tables<Float8>();
  for (u32 code = 0; code < 256; ++code) {
    EXPECT_EQ(double{Float8::decode<true>(t, code)}, float8_value(true, code)) << code;
    EXPECT_EQ(double{Float8::decode<false>(t, code)}, float8_value(false, code)) << code;
    for (u32 random = 0; random < kRandoms; random += 255) {  // values of a code are not rounded
      EXPECT_EQ(Float8::encode_with<true>(t, Float8::decode<true>(t, code), 1.f, true, random), code);
      EXPECT_EQ(Float8::encode_with<false>(t, Float8::decode<false>(t, code), 1.f, true, random), code);
    }
  }
  // Range: no step of a first moment exceeds the root of the smallest second moment.
  EXPECT_LE(float8_value(true, 1) / float8_value(true, 127),
            std::sqrt(float8_value(false, 1) / float8_value(false, 255)));
}

// At any absmax the scale is a power of two, and the largest value neither overflows nor wastes a bit.
TEST(Float8, ScalesArePowersOfTwoThatFit) {
  Rng rng(32);
  Figures f[2];
  const auto& t = tables<Float8>();
  int scales = 0;
  std::vector<float> tops = {0x1p-149f, 0x1p-126f, 0x1p-100f, 1.f, 1.9375f, std::nextafterf(1.9375f, 2.f), 0x1.fp127f};
  for (int i = 0; i < 3000; ++i) tops.push_back(static_cast<float>(std::fabs(rng.over_binades(-126, 127))));
  for (const float top : tops) {
    const BlockScale of = Float8::block_scale<true>(top);
    ASSERT_EQ(bits(of.scale) & 0x7fffffu, 0u) << top;
    ASSERT_EQ(double{of.scale} * double{of.inverse}, 1.0) << top;
    ASSERT_LE(double{top} / of.scale, 3.875) << top;
    ASSERT_TRUE(top < 0x1p-100f || double{top} / of.scale > 3.875 / 2) << top;
    for (const u32 random : {0u, kRandoms - 1}) {
      const u32 code = Float8::encode_with<true>(t, top, of.inverse, true, random);
      ASSERT_LE(code, 127u) << top;
      ASSERT_GE(Float8::encode_with<true>(t, -top, of.inverse, true, random), 128u) << top;
      ASSERT_GE(Float8::encode_with<false>(t, top, of.inverse, true, random), 1u) << top;
    }
    ++scales;
    if (top < 0x1p-90f) continue;
    for (int i = 0; i < 8; ++i) {
      const float x = static_cast<float>(double{top} * std::fabs(rng.over_binades(-9, 0)));
      see<Float8, true>(x, of, f[1]);
      see<Float8, true>(-x, of, f[1]);
      if (double{x} / of.scale >= float8_value(false, 1)) see<Float8, false>(x, of, f[0]);
    }
  }
  for (const bool is_signed : {false, true}) {
    figure("float8 {}: {} scales, {} values, means off by {} / 65536 of a step at most",
           is_signed ? "signed" : "unsigned", scales, f[is_signed].values, f[is_signed].worst_bias);
    // Half of the last of 16 random bits. Below the smallest normal number x has as many bits, so half of its last bit
    // more.
    EXPECT_LE(f[is_signed].worst_bias, 0.5 + 1 / 16.0);
  }
}

// Above 1.9375 * 2^127, where the next scale's codes would decode to infinity, values lose 1/32 and then are one of the
// two largest codes, which decode to floats that keep their codes.
template <bool kSigned>
void sweep_largest_floats(int& swept) {
  const auto& t = tables<Float8>();
  constexpr u32 kTopCode = kSigned ? 127 : 255;
  for (u32 u = bits(0x1.fp127f) + 1; u <= bits(0x1.fffffep127f); u += 2, ++swept) {
    const BlockScale of = Float8::block_scale<kSigned>(as_float(u));
    for (const u32 random : {0u, kRandoms - 1}) {
      const u32 code = Float8::encode_with<kSigned>(t, as_float(u), of.inverse, true, random);
      ASSERT_TRUE(code == kTopCode || code == kTopCode - 1) << u;
      const float value = Float8::decode<kSigned>(t, code) * of.scale;
      ASSERT_LE(value, 0x1.fp127f) << u;
      const BlockScale again = Float8::block_scale<kSigned>(value);
      ASSERT_EQ(Float8::encode_with<kSigned>(t, value, again.inverse, true, random), code) << u;
    }
  }
}

TEST(Float8, DecodesTheLargestFloatsToFiniteOnes) {
  int swept = 0;
  sweep_largest_floats<true>(swept);
  sweep_largest_floats<false>(swept);
  figure("{} floats, 0 become infinite", swept);
}

TEST(Float8, KeepsZeroAndNothingElseOfSecondMomentsAtZero) {
  const auto& t = tables<Float8>();
  int checked = 0;
  for (const u32 random : {0u, 1u, 12345u, kRandoms - 1}) {
    EXPECT_EQ(Float8::encode_with<true>(t, 0.f, 1.f, true, random), 0u);
    EXPECT_EQ(Float8::encode_with<false>(t, 0.f, 1.f, true, random), 0u);
    EXPECT_EQ(Float8::decode<true>(t, Float8::encode_with<true>(t, -0.f, 1.f, true, random)), 0.f);
    for (u32 u = 1; u < bits(3.875f); u += 9973, ++checked) {
      ASSERT_GE(Float8::encode_with<false>(t, as_float(u), 1.f, true, random), 1u);
      ASSERT_LE(Float8::encode_with<false>(t, as_float(u), 1.f, true, random), 255u);
      ASSERT_GE(Float8::encode_with<false>(t, as_float(u), 0x1p-40f, false, random), 1u);
    }
  }
  figure("{} positive values, 0 stored as zero", checked);
}

TEST(Float8, RoundsToNearestWithoutRandomNumbers) {
  const auto& t = tables<Float8>();
  Rng rng(33);
  int checked = 0;
  for (const bool is_signed : {false, true}) {
    const u32 codes = is_signed ? 128 : 256;
    for (int i = 0; i < 20000; ++i, ++checked) {
      const float x = static_cast<float>(3.875 * std::fabs(rng.over_binades(is_signed ? -12 : -20, 0)));
      const u32 got = is_signed ? Float8::encode_with<true>(t, x, 1.f, false, 0u)
                                : Float8::encode_with<false>(t, x, 1.f, false, 0u);
      double least = 10;
      for (u32 code = is_signed ? 0 : 1; code < codes; ++code)
        least = std::min(least, std::fabs(float8_value(is_signed, code) - double{x}));
      ASSERT_EQ(std::fabs(float8_value(is_signed, got) - double{x}), least) << x;
    }
  }
  figure("{} values, 0 not nearest", checked);
}

TEST(StochasticRounding, Bfloat16HasTheValueAsItsMean) {
  Rng rng(34);
  Figures f[2];
  for (int i = 0; i < 20000; ++i) {
    const float x = static_cast<float>(rng.over_binades(-120, 120));
    see<Bf16, true>(x, {1.f, 1.f}, f[1]);
    see<Bf16, false>(std::fabs(x), {1.f, 1.f}, f[0]);
  }
  for (const bool is_signed : {false, true}) EXPECT_EQ(f[is_signed].worst_bias, 0);
  for (u32 random = 0; random < kRandoms; ++random) {
    ASSERT_EQ(Bf16::encode_with<false>({}, 0x1p-149f, 1.f, true, random), 1u);
    ASSERT_EQ(Bf16::encode_with<false>({}, 0.f, 1.f, true, random), 0u);
    ASSERT_EQ(Bf16::encode_with<true>({}, -0.f, 1.f, true, random), 0x8000u);
  }
  figure("bf16: {} values, means off by 0", f[0].values + f[1].values);
}

}  // namespace
