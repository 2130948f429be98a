// bf16 and fp16 by their definition, in double arithmetic: values are exact, and rounding is that of nearbyint in units
// of the last place (ties to even).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace lowtide::testing {

struct HalfFormat {
  int mantissa_bits, bias, largest_exponent;  // largest_exponent: biased, of infinity and NaN
};
inline constexpr HalfFormat kBf16Format{7, 127, 255}, kF16Format{10, 15, 31};

inline double half_value(uint16_t h, const HalfFormat& f) {
  const int mantissa = h & ((1 << f.mantissa_bits) - 1), exponent = (h >> f.mantissa_bits) & f.largest_exponent;
  const double sign = h >> 15 ? -1.0 : 1.0;
  if (exponent == f.largest_exponent)
    return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - f.bias - f.mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << f.mantissa_bits), exponent - f.bias - f.mantissa_bits);
}

// Not for NaN. x: exactly what is to be rounded (a float, usually).
inline uint16_t half_nearest(double x, const HalfFormat& f) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double a = std::fabs(x);
  const uint16_t infinity = static_cast<uint16_t>(f.largest_exponent << f.mantissa_bits);
  if (std::isinf(a)) return sign | infinity;
  if (a == 0) return sign;
  const int exponent = std::max(std::ilogb(a), 1 - f.bias);
  // In units of the last place; 2^(mantissa_bits + 1) carries into the exponent by itself.
  const double units = std::nearbyint(std::ldexp(a, f.mantissa_bits - exponent));
  const auto code = static_cast<int64_t>(units) + (static_cast<int64_t>(exponent + f.bias - 1) << f.mantissa_bits);
  return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::min<int64_t>(code, infinity)));
}

inline double bf16_value(uint16_t h) { return half_value(h, kBf16Format); }
inline double f16_value(uint16_t h) { return half_value(h, kF16Format); }
inline uint16_t bf16_nearest(double x) { return half_nearest(x, kBf16Format); }
inline uint16_t f16_nearest(double x) { return half_nearest(x, kF16Format); }

}  // namespace lowtide::testing
