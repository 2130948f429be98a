// bf16 and fp16 conversion, against the definition in double.
#include "support/half_reference.h"
#include "support/test.h"

namespace {
#include "portable/portable.h"

using lowtide::testing::HalfFormat;
using lowtide::testing::figure;

struct Format {
  const char* name;
  HalfFormat definition;
  float (*decode)(u32);
  u32 (*encode)(float);
};
const Format kFormats[] = {
    {"bf16", lowtide::testing::kBf16Format, [](u32 h) { return bf16_decode(h); },
     [](float x) { return bf16_encode(x); }},
    {"fp16", lowtide::testing::kF16Format, [](u32 h) { return f16_decode(h); }, [](float x) { return f16_encode(x); }},
};

TEST(Half, DecodesAllCodesExactly) {
  for (const Format& f : kFormats) {
    int nans = 0;
    for (u32 h = 0; h < 65536; ++h) {
      const double wanted = half_value(static_cast<u16>(h), f.definition);
      const float got = f.decode(h);
      if (std::isnan(wanted)) {
        ++nans;
        EXPECT_TRUE(std::isnan(got)) << f.name << " code " << h;
      } else {
        EXPECT_EQ(static_cast<double>(got), wanted) << f.name << " code " << h;
        EXPECT_EQ(std::signbit(got), (h >> 15) != 0) << f.name << " code " << h;
        EXPECT_EQ(f.encode(got), h) << f.name << ": code -> value -> code";
      }
    }
    figure("{}: 65536 codes, {} of them NaN", f.name, nans);
  }
}

// Every value at which rounding changes, and its two neighbours in float.
TEST(Half, RoundsEveryBoundaryToEven) {
  for (const Format& f : kFormats) {
    int checked = 0, ties_up = 0;
    for (u32 h = 0; h < static_cast<u32>(f.definition.largest_exponent << f.definition.mantissa_bits); ++h) {
      const double below = half_value(static_cast<u16>(h), f.definition);
      const double above = half_value(static_cast<u16>(h + 1), f.definition);
      // The last code's upper neighbour is infinity; rounding treats it as one more finite value.
      const double step = below - half_value(static_cast<u16>(h - 1), f.definition);
      const float middle = static_cast<float>(std::isinf(above) ? below + step / 2 : (below + above) / 2);
      const u32 even = h & 1 ? h + 1 : h;
      ties_up += h & 1;
      for (const float sign : {1.f, -1.f}) {
        const u32 bit = sign < 0 ? 0x8000u : 0;
        ASSERT_EQ(f.encode(sign * middle), even | bit) << f.name << " tie above code " << h;
        ASSERT_EQ(f.encode(sign * std::nextafterf(middle, 0.f)), h | bit) << f.name << " below the tie of " << h;
        const float beyond = sign * std::nextafterf(middle, INFINITY);
        ASSERT_EQ(f.encode(beyond), (h + 1) | bit) << f.name << " above the tie of " << h;
        checked += 3;
      }
    }
    EXPECT_GT(ties_up, 0);
    figure("{}: {} values at {} boundaries", f.name, checked, checked / 6);
  }
}

TEST(Half, MatchesTheDefinitionOverAllFloats) {
  constexpr u64 kStride = 251;  // prime: all low bits occur in every binade
  for (const Format& f : kFormats) {
    u64 checked = 0, truncation_differs = 0;
    for (u64 u = 0; u < (1ull << 32); u += kStride, ++checked) {
      const float x = std::bit_cast<float>(static_cast<u32>(u));
      const u32 got = f.encode(x);
      if (std::isnan(x)) {
        ASSERT_TRUE(std::isnan(half_value(static_cast<u16>(got), f.definition))) << f.name << " of " << std::hex << u;
        continue;
      }
      ASSERT_EQ(got, half_nearest(x, f.definition)) << f.name << " of " << x << ", bits " << std::hex << u;
      truncation_differs += got != (static_cast<u32>(u) >> 16);
    }
    EXPECT_GT(truncation_differs, checked / 8) << "control: cutting off bits is not rounding";
    figure("{}: {} floats equal to the definition", f.name, checked);
  }
}

}  // namespace
