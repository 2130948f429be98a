// dynamic4 on plain floats: its entries, nearest rounding by definition, and stochastic rounding with the right mean.
#include "support/dynamic4_map.h"
#include "support/test.h"

namespace {
#include "portable/portable.h"

using lowtide::testing::Dynamic4Map;
using lowtide::testing::Rng;
using lowtide::testing::figure;

const Dynamic4::Tables& tables() {
  static const Dynamic4::Tables all = [] {
    Dynamic4::Tables t;
    Dynamic4::make_tables(t);
    return t;
  }();
  return all;
}

template <bool kSigned>
u32 code_of(float x, bool stochastic, u32 random) {
  return Dynamic4::encode_with<kSigned>(tables(), x, 1.f, stochastic, random);
}

TEST(Dynamic4, DecodesWhatIsListed) {
  for (const bool is_signed : {false, true}) {
    const Dynamic4Map map(is_signed);
    ASSERT_EQ(map.value.size(), 16u);
    for (u32 code = 0; code < 16; ++code)
      EXPECT_EQ(is_signed ? Dynamic4::decode<true>(tables(), code) : Dynamic4::decode<false>(tables(), code),
                map.value[code]);
  }
  EXPECT_EQ(Dynamic4::decode<true>(tables(), Dynamic4::kSignedZero), 0.f);
  EXPECT_EQ(sizeof(u4), 1u);
}

// Sweeps every 7th float of [2^-31, 1], with both signs, and all floats around midpoints.
TEST(Dynamic4, IsNearestForFloatsOfBothSigns) {
  const Dynamic4Map map(true);
  int64_t swept = 0, differing = 0, ties = 0;
  const auto see = [&](float x) {
    ++swept, differing += code_of<true>(x, false, 0) != static_cast<u32>(map.nearest(x));
  };
  for (u32 u = bits(0x1p-31f); u <= bits(1.f); u += 7) see(as_float(u)), see(-as_float(u));
  for (int i = 0; i < 15; ++i) {
    const float middle = (map.value[size_t(i)] + map.value[size_t(i) + 1]) * 0.5f;
    for (u32 u = bits(middle) - 50; u <= bits(middle) + 50; ++u) see(as_float(u));
    ties += code_of<true>(middle, false, 0) == static_cast<u32>(i);
  }
  for (const float x : {0.f, -0.f, 0x1p-149f, -0x1p-149f, 1.f, -1.f, 1.0000001f, -1.0000001f}) see(x);
  figure("{} floats, {} codes differ from nearest", swept, differing);
  EXPECT_EQ(differing, 0);
  EXPECT_EQ(ties, 15) << "a tie keeps the lower entry";
}

// Over all 65536 random numbers a value becomes at most two neighbours, whose mean is the value. y is up to 2^20 and
// thus a multiple of 2^-4, in units of 2^-16 of a step. Rounding slope, intercept, product and sum costs at most 4
// halves of that, plus the slope's error, 2^-24 of up to 2^20; truncation costs half a unit.
TEST(Dynamic4, StochasticRoundingHasTheValueAsItsMean) {
  constexpr u32 kRandoms = 65536;
  constexpr double kBound = 0.5 + 5 * 0x1p-5;
  Rng rng(41);
  for (const bool is_signed : {false, true}) {
    const Dynamic4Map map(is_signed);
    double worst = 0;
    int values = 0;
    const auto see = [&](float x) {
      const auto of = [&](u32 random) {
        return is_signed ? code_of<true>(x, true, random) : code_of<false>(x, true, random);
      };
      const u32 near = of(0), far = of(kRandoms - 1);
      ASSERT_LE(near > far ? near - far : far - near, 1u) << x;
      u32 low = 0, high = kRandoms - 1;  // a larger random number only moves away from zero
      while (low < high) {
        const u32 middle = (low + high) / 2;
        of(middle) == near ? low = middle + 1 : high = middle;
      }
      const double share = near == far ? 0 : double(kRandoms - low) / kRandoms;
      const double mean = map.value[near] * (1 - share) + map.value[far] * share;
      const u32 next = near != far ? far : near == 15 ? 14 : near + 1;
      const double step = std::fabs(double{map.value[near]} - map.value[next]);
      ++values, worst = std::max(worst, std::fabs(mean - double{x}) / step * kRandoms);
    };
    for (int i = 0; i < 20000; ++i) {
      const auto x = static_cast<float>(std::fabs(rng.over_binades(is_signed ? -14 : -8, 0)));
      if (!is_signed) see(std::max(x, 0x1p-8f));
      if (is_signed) see(x);
      if (is_signed && x <= .8875f) see(-x);  // there is no entry at -1
    }
    for (const float entry : map.value)
      for (const float x : {std::nextafterf(entry, 0.f), entry, std::nextafterf(entry, 1.f)})
        if (x <= 1 && (is_signed ? x >= -.8875f : x >= 0x1p-8f)) see(x);
    figure("dynamic4 {}: {} values x {} random numbers, means off by {} / 65536 of a step at most",
           is_signed ? "signed" : "unsigned", values, kRandoms, worst);
    EXPECT_LE(worst, kBound);
  }
}

// Values below the lowest second moment become it, zero included; entries are not rounded.
TEST(Dynamic4, KeepsEntriesAndTheFloor) {
  const Dynamic4Map moments(false), averages(true);
  for (u32 random = 0; random < 65536; random += 13) {
    for (const float x : {0.f, 0x1p-149f, 1e-20f, 0x1p-9f, 0x1p-8f}) ASSERT_EQ(code_of<false>(x, true, random), 0u);
    for (u32 code = 0; code < 16; ++code) {
      ASSERT_EQ(code_of<false>(moments.value[code], true, random), code);
      ASSERT_EQ(code_of<true>(averages.value[code], true, random), code);
    }
    ASSERT_EQ(code_of<true>(-0.f, true, random), Dynamic4::kSignedZero);
    ASSERT_EQ(code_of<true>(-1.f, true, random), 0u);
    ASSERT_EQ(code_of<true>(1.0000001f, true, random), 15u);
    ASSERT_EQ(code_of<false>(1.0000001f, true, random), 15u);
  }
}

}  // namespace
