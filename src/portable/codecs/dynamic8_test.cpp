// The dynamic map's constants, and the portable quantizer at every boundary on plain floats. backend/cpu/codec_test.cpp
// sweeps all instruction sets densely.
#include "support/dynamic_map.h"
#include "support/test.h"

namespace {
#include "portable/portable.h"

using lowtide::testing::DynamicMap;
using lowtide::testing::figure;

const Dynamic8::Tables& tables() {
  static const Dynamic8::Tables all = [] {
    Dynamic8::Tables t;
    Dynamic8::make_tables(t);
    return t;
  }();
  return all;
}

u32 encode(bool is_signed, float value, float inverse = 1.f) {
  return is_signed ? Dynamic8::encode_with<true>(tables(), value, inverse, false, u32{0})
                   : Dynamic8::encode_with<false>(tables(), value, inverse, false, u32{0});
}
float decode(bool is_signed, u32 code) {
  return is_signed ? Dynamic8::decode<true>(tables(), code) : Dynamic8::decode<false>(tables(), code);
}

// tests/python/compat/test_compat_functional.py has the digests of the published maps, and compares codes.
TEST(DynamicMap, IsWhatItsDefinitionGives) {
  for (const bool is_signed : {false, true}) {
    const DynamicMap map(is_signed);
    const u32* constants = is_signed ? kDynamic8SignedBits : kDynamic8UnsignedBits;
    for (u32 i = 0; i < 256; ++i) {
      EXPECT_EQ(std::bit_cast<u32>(map.value[i]), constants[i]) << "entry " << i;
      EXPECT_EQ(std::bit_cast<u32>(decode(is_signed, i)), constants[i]) << "decoded code " << i;
      EXPECT_TRUE(i == 0 || map.value[i - 1] < map.value[i]) << "entry " << i;
    }
    EXPECT_EQ(constants[is_signed ? Dynamic8::kSignedZero : 0], 0u);  // +0, not -0
    EXPECT_EQ(map.value[255], 1.f);
    for (u32 i = 0; is_signed && i < 127; ++i)
      EXPECT_EQ(map.value[127 - i - 1], -map.value[127 + i + 1]) << "rank " << i + 1;
  }
}

TEST(Dynamic8, KeepsZeroAndOne) {
  EXPECT_EQ(encode(true, 0.f), 127u);
  EXPECT_EQ(encode(true, -0.f), 127u);
  EXPECT_EQ(encode(false, 0.f), 0u);
  EXPECT_EQ(encode(false, -0.f), 0u);
  EXPECT_EQ(encode(true, 1.f), 255u);
  EXPECT_EQ(encode(false, 1.f), 255u);
  EXPECT_EQ(encode(true, -1.f), 0u);  // there is no entry at -1
  EXPECT_EQ(encode(true, 0x1.000002p0f), 255u) << "rounding of value * (1 / absmax) may exceed 1 by an ulp";
  EXPECT_EQ(encode(true, -0x1.000002p0f), 0u);
}

}  // namespace
