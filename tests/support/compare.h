// Compares bits, and prints the first difference as index, got, wanted and distance in ulp.
#pragma once

#include "lowtide/tensor.h"
#include "support/half_reference.h"
#include "support/test.h"

namespace lowtide::testing {

// Maps floats to integers in the same order: neighbours differ by 1, and -0 equals +0.
inline int64_t ordered(float x) {
  const int32_t i = std::bit_cast<int32_t>(x);
  return i < 0 ? -static_cast<int64_t>(i & 0x7fffffff) : i;
}
inline int64_t ulp_distance(float a, float b) {
  const int64_t d = ordered(a) - ordered(b);
  return d < 0 ? -d : d;
}

// The number of bytes that differ between two arrays.
inline int64_t differing_bytes(const void* a, const void* b, int64_t bytes) {
  if (bytes == 0 || std::memcmp(a, b, static_cast<size_t>(bytes)) == 0) return 0;
  const auto* x = static_cast<const unsigned char*>(a);
  const auto* y = static_cast<const unsigned char*>(b);
  int64_t count = 0;
  for (int64_t i = 0; i < bytes; ++i) count += x[i] != y[i];
  return count;
}

inline float element(const void* data, DType dtype, int64_t i) {
  if (dtype == DType::kF32) return static_cast<const float*>(data)[i];
  const uint16_t h = static_cast<const uint16_t*>(data)[i];
  return static_cast<float>(dtype == DType::kBF16 ? bf16_value(h) : f16_value(h));
}

// Succeeds if the two tensors hold the same bits; else names the first difference.
inline ::testing::AssertionResult same_bits(const void* got, const void* wanted, DType dtype, int64_t n) {
  const int64_t size = dtype_bytes(dtype), differing = differing_bytes(got, wanted, n * size);
  if (differing == 0) return ::testing::AssertionSuccess();
  for (int64_t i = 0; i < n; ++i) {
    if (differing_bytes(static_cast<const char*>(got) + i * size, static_cast<const char*>(wanted) + i * size, size) ==
        0)
      continue;
    const float g = element(got, dtype, i), w = element(wanted, dtype, i);
    char text[200];
    std::snprintf(text, sizeof text,
                  "%lld bytes differ; first at index %lld of %lld: got %a, wanted %a, %lld ulp of float",
                  static_cast<long long>(differing), static_cast<long long>(i), static_cast<long long>(n),
                  static_cast<double>(g), static_cast<double>(w), static_cast<long long>(ulp_distance(g, w)));
    return ::testing::AssertionFailure() << text;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace lowtide::testing
