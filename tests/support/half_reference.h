// bf16 and fp16 by their definition, in double arithmetic: values are exact, and rounding is to the nearest unit of the
// last place, ties to even. For speed it calls no libm function: tests convert tensors element by element.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace lowtide::testing {

struct HalfFormat {
  int mantissa_bits, bias, largest_exponent;  // largest_exponent: of infinity and NaN, biased
};
inline constexpr HalfFormat kBf16Format{7, 127, 255}, kF16Format{10, 15, 31};

// n: -1022 to 1023.
inline double power_of_two(int n) { return std::bit_cast<double>(static_cast<uint64_t>(n + 1023) << 52); }

inline double half_value(uint16_t h, const HalfFormat& f) {
  const int mantissa = h & ((1 << f.mantissa_bits) - 1), exponent = (h >> f.mantissa_bits) & f.largest_exponent;
  const double sign = h >> 15 ? -1.0 : 1.0;
  if (exponent == f.largest_exponent)
    return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * mantissa * power_of_two(1 - f.bias - f.mantissa_bits);
  return sign * (mantissa + (1 << f.mantissa_bits)) * power_of_two(exponent - f.bias - f.mantissa_bits);
}

// x: the exact value to round (usually a float), not a NaN.
inline uint16_t half_nearest(double x, const HalfFormat& f) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double a = std::fabs(x);
  const uint16_t infinity = static_cast<uint16_t>(f.largest_exponent << f.mantissa_bits);
  if (std::isinf(a)) return sign | infinity;
  if (a == 0) return sign;
  const int exponent = std::max(static_cast<int>(std::bit_cast<uint64_t>(a) >> 52) - 1023, 1 - f.bias);
  // In units of the last place; 2^(mantissa_bits + 1) carries into the exponent by itself. Doubles from 2^52 on have no
  // fraction, so the sum is rounded.
  const double units = a * power_of_two(f.mantissa_bits - exponent) + 0x1p52 - 0x1p52;
  const auto code = static_cast<int64_t>(units) + (static_cast<int64_t>(exponent + f.bias - 1) << f.mantissa_bits);
  return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::min<int64_t>(code, infinity)));
}

inline double bf16_value(uint16_t h) { return half_value(h, kBf16Format); }
inline double f16_value(uint16_t h) { return half_value(h, kF16Format); }
inline uint16_t bf16_nearest(double x) { return half_nearest(x, kBf16Format); }
inline uint16_t f16_nearest(double x) { return half_nearest(x, kF16Format); }

}  // namespace lowtide::testing
