// dynamic8 of the hot path gives the dialect's codes for every float of [2^-31, 1], both signs, and below and at 0.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>

#include "backend/cuda/device/prelude.inc"
#include "backend/cuda/device/packed-inl.h"
#include "backend/cuda/device/lane_codec-inl.h"

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(__SANITIZE_UNDEFINED__) || \
    !defined(__OPTIMIZE__)
constexpr u32 kStride = 127;  // sanitized code is slow; a prime passes through all low bits
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

  // In a block of this absmax.
  template <bool kSigned>
  void compare(float value, float absmax) {
    const float inverse = block_inverse(absmax, 1.f);
    const u32 wanted = Dynamic8::encode<kSigned>(*tables, value, inverse, Rounding{}, 0u);
    const u32 got = Lane::sum<kSigned>(*shared, value, Lane::factor(kSigned, inverse)) >> 16;
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

TEST(CudaLaneCodec, Dynamic8GivesTheCodesOfTheDialect) {
  Both both;
  for (const float absmax : {1.f, 0x1p-96f, 3e-29f, 0.7f, 123.f, 0x1p22f})
    for (const float part : {0.f, 0x1p-45f, 0x1p-40f, 0x1p-23f, 0x1p-22f, 0.5f, 0.99f, 1.f})
      both.compare_all(part * absmax, absmax);
  for (u32 u = 0x30000000u; u <= 0x3f800000u; u += kStride) both.compare_all(as_float(u), 1.f);
  std::printf("%lld codes compared, %lld differ\n", static_cast<long long>(both.compared),
              static_cast<long long>(both.differing));
  EXPECT_EQ(both.differing, 0);
}

// What a second moment is, however small, is no 0, and 0 is nothing else.
TEST(CudaLaneCodec, Dynamic8KeepsZeroAndNothingElseAtZero) {
  Both both;
  for (int exponent = -100; exponent <= 20; ++exponent) {
    const float value = __builtin_ldexpf(1.f, exponent);
    both.compare<false>(value, 0x1p20f);
    EXPECT_NE(Lane::sum<false>(*both.shared, value, Lane::factor(false, block_inverse(0x1p20f, 1.f))) >> 16, 0u);
  }
  both.compare<false>(0.f, 0x1p20f);
  both.compare<false>(0.f, 0.f);
  both.compare<true>(0.f, 0.f);
  EXPECT_EQ(both.differing, 0);
}

}  // namespace
}  // namespace lowtide::cuda_device
