// Tests that codecs of the hot path give the portable codes and values: dynamic8 for all floats of [2^-31, 1], both
// signs, smaller values and 0; and, rounded stochastically, dynamic8, float8 and bf16 over all magnitudes of a block.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>

#include "support/test.h"

#include "backend/cuda/device/prelude.inc"
#include "backend/kernels/step-inl.h"
#include "backend/cuda/device/real-inl.h"
#include "backend/cuda/device/packed-inl.h"
#include "backend/cuda/device/lane_codec-inl.h"
#include "backend/cuda/device/lane_dynamic8-inl.h"

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(__SANITIZE_UNDEFINED__) || \
    !defined(__OPTIMIZE__)
constexpr u32 kStride = 127;  // a stride, because sanitized code is slow; a prime reaches all low bits
#else
constexpr u32 kStride = 1;
#endif

using Lane = LaneCodec<Dynamic8>;

struct Both {
  std::unique_ptr<Dynamic8::Tables> tables = std::make_unique<Dynamic8::Tables>();
  std::unique_ptr<Lane::Shared> shared = std::make_unique<Lane::Shared>();
  i64 compared = 0, differing = 0;

  Both() {
    Dynamic8::make_tables(*tables);
    threadIdx = {0, 0, 0};
    blockDim = dim3(1);
    Lane::fill(*shared, tables.get());
  }

  // Compares the codes of a value in a block with this absmax.
  template <bool kSigned>
  void compare(float value, float absmax) {
    const float inverse = block_inverse(absmax, 1.f);
    const u32 wanted = Dynamic8::encode_with<kSigned>(*tables, value, inverse, false, 0u);
    const u32 got = Lane::sum<kSigned>(*shared, value, Lane::Codes<kSigned>::factor(inverse)) >> 16;
    ++compared;
    if (got == wanted) return;
    if (++differing < 5)
      ADD_FAILURE() << (kSigned ? "signed " : "unsigned ") << value << " of " << absmax << ": got " << got
                    << ", wanted " << wanted;
  }
  void compare_all(float magnitude, float absmax) {
    compare<false>(magnitude, absmax);
    compare<true>(magnitude, absmax);
    compare<true>(-magnitude, absmax);
  }
};

TEST(CudaLaneCodec, Dynamic8GivesTheCodesOfThePortableCodecs) {
  Both both;
  for (const float absmax : {1.f, 0x1p-96f, 3e-29f, 0.7f, 123.f, 0x1p22f})
    for (const float part : {0.f, 0x1p-45f, 0x1p-40f, 0x1p-23f, 0x1p-22f, 0.5f, 0.99f, 1.f})
      both.compare_all(part * absmax, absmax);
  // An odd stride reaches all low bits.
  const u32 stride = kStride * (static_cast<u32>(testing::spread()) | 1u);
  for (u32 u = 0x30000000u; u <= 0x3f800000u; u += stride) both.compare_all(as_float(u), 1.f);
  std::printf("%lld codes compared, %lld differ\n", static_cast<long long>(both.compared),
              static_cast<long long>(both.differing));
  EXPECT_EQ(both.differing, 0);
}

// A positive second moment never becomes 0, however small it is, and 0 stays 0.
TEST(CudaLaneCodec, Dynamic8KeepsZeroAndNothingElseAtZero) {
  Both both;
  for (int exponent = -100; exponent <= 20; ++exponent) {
    const float value = __builtin_ldexpf(1.f, exponent);
    both.compare<false>(value, 0x1p20f);
    EXPECT_NE(Lane::sum<false>(*both.shared, value, Lane::Codes<false>::factor(0x1p-20f)) >> 16, 0u);
  }
  both.compare<false>(0.f, 0x1p20f);
  both.compare<false>(0.f, 0.f);
  both.compare<true>(0.f, 0.f);
  EXPECT_EQ(both.differing, 0);
}

// Compares codecs with the portable kernels for four values of a lane at a time, like the hot path.
template <class C>
struct Stochastic {
  using Lane = LaneCodec<C>;
  std::unique_ptr<typename C::Tables> tables = std::make_unique<typename C::Tables>();
  std::unique_ptr<typename Lane::Shared> shared = std::make_unique<typename Lane::Shared>();
  i64 compared = 0, differing = 0;

  Stochastic() {
    if constexpr (std::is_same_v<C, Dynamic8>) Dynamic8::make_tables(*tables);
    threadIdx = {0, 0, 0};
    blockDim = dim3(1);
    Lane::fill(*shared, tables.get());
  }

  u32 code_at(const u32* word, int i) const {
    constexpr int kOfWord = 4 / static_cast<int>(sizeof(typename C::Code));
    return word[i / kOfWord] >> 32 / kOfWord * (i % kOfWord) & (kOfWord == 4 ? 0xffu : 0xffffu);
  }

  template <bool kSigned>
  void compare(const float (&value)[4], float absmax, u32 index, RandomKey key) {
    typename Lane::template Codes<kSigned> codes{};
    float inverse = 1.f;
    if constexpr (C::kScaled) {
      inverse = Lane::template Codes<kSigned>::inverse(absmax);
      const BlockScale of = block_scale<C, kSigned>(absmax);
      const float scale = Lane::template Codes<kSigned>::scale(absmax);
      differing += bits(of.inverse) != bits(inverse) || bits(of.scale) != bits(scale);
    }
    u32 random[2];
    LaneRandom{index - 4, key}.four(4, random);
    codes.template round_four<false>(*shared, 4, value, inverse, random);
    for (int i = 0; i < 4; ++i, ++compared) {
      const u32 wanted = encode_at<C, kSigned>(*tables, value[i], inverse, Rounding{true, key}, index + u32(i));
      const float decoded = codes.get(*shared, 4 + i);
      const u32 got = code_at(codes.word, 4 + i);
      if (got == wanted && bits(decoded) == bits(C::template decode<kSigned>(*tables, wanted))) continue;
      if (++differing < 5)
        ADD_FAILURE() << C::kName << (kSigned ? " signed " : " unsigned ") << value[i] << " of " << absmax << ": got "
                      << got << " for " << decoded << ", wanted " << wanted;
    }
  }

  void run() {
    RandomKey key{0x12345678u, 0x9abcdef0u};
    u32 u = 0x30000000u;
    constexpr u32 kStep = kStride == 1 ? 61 : 6007;
    // Steps through the floats of [2^-31, 1] and far smaller values, in blocks of several magnitudes.
    for (u32 n = 0; u < 0x3f800000u; u += 3 * kStep, ++n, key = {key.k0 * 5 + 1, key.k1 ^ n}) {
      constexpr float kMost[] = {1.f, 0.7f, 123.f, 0x1.fffffep127f, 3e-20f, 0x1.fp-3f, 0x1.efp-3f};
      const float absmax = kMost[n % 7], down = n % 5 == 0 ? 0x1p-24f : 1.f;
      const float value[4] = {as_float(u) * absmax, as_float(u + kStep) * absmax * down,
                              n % 9 ? as_float(u + 2 * kStep) * absmax : 0.f, n % 3 ? absmax : 0.5f * absmax};
      const float with_signs[4] = {-value[0], value[1], -value[2], n % 2 ? value[3] : -value[3]};
      compare<false>(value, absmax, 4 * n, key);
      compare<true>(with_signs, absmax, 4 * n, key);
    }
    const float zero[4] = {};
    if constexpr (C::kScaled) compare<true>(zero, 0.f, 8, key), compare<false>(zero, 0.f, 8, key);
    std::printf("%s stochastically: %lld codes compared, %lld differ\n", C::kName, static_cast<long long>(compared),
                static_cast<long long>(differing));
    EXPECT_EQ(differing, 0);
  }
};

TEST(CudaLaneCodec, Dynamic8RoundsByThePortableChances) { Stochastic<Dynamic8>().run(); }
TEST(CudaLaneCodec, Float8RoundsByThePortableChances) { Stochastic<Float8>().run(); }
TEST(CudaLaneCodec, Bfloat16RoundsByThePortableChances) { Stochastic<Bf16>().run(); }

}  // namespace
}  // namespace lowtide::cuda_device
