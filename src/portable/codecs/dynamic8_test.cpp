// The dynamic map's constants, and the portable quantizer at every boundary on plain floats. backend/cpu/codec_test.cpp
// sweeps all instruction sets densely.
#include "support/dynamic_map.h"
#include "support/sha256.h"
#include "support/test.h"

namespace {
#include "portable/portable.h"

using lowtide::testing::DynamicMap;
using lowtide::testing::figure;
using lowtide::testing::sha256;

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

TEST(Sha256, KnowsThePublishedVectors) {
  EXPECT_EQ(sha256("", 0), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc", 3), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(DynamicMap, HasThePublishedDigests) {
  const char* signed_digest = "e732639a65f497b4ad684bb166a4467708255edd5207757de8b8f0c7e1fda89c";
  EXPECT_EQ(sha256(kDynamic8SignedBits, sizeof kDynamic8SignedBits), signed_digest);
  EXPECT_EQ(sha256(kDynamic8UnsignedBits, sizeof kDynamic8UnsignedBits),
            "305f002cc11278fb769d13b25b9fd0c7c83c8402c40a878fe086f4039fde6398");
  // Control: one ulp in one entry changes the digest.
  u32 altered[256];
  std::copy(kDynamic8SignedBits, kDynamic8SignedBits + 256, altered);
  altered[200] ^= 1;
  EXPECT_NE(sha256(altered, sizeof altered), signed_digest);
}

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
