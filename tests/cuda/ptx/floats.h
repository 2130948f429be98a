// Numbers of 32 bits as PTX has them: roundings, flushed denormals, one NaN.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace ptx {

enum class Rounding { kZero, kDown, kUp };

inline float nan_of_ptx() { return std::bit_cast<float>(0x7fffffffu); }
inline bool is_nan(float x) { return (std::bit_cast<uint32_t>(x) & 0x7fffffffu) > 0x7f800000u; }
inline float one_nan(float x) { return is_nan(x) ? nan_of_ptx() : x; }

// Denormals become zeros of their sign.
template <bool kFlush>
float flushed(float x) {
  if constexpr (!kFlush) return x;
  const auto bits = std::bit_cast<uint32_t>(x);
  return (bits & 0x7f800000u) == 0 ? std::bit_cast<float>(bits & 0x80000000u) : x;
}

// Into [0, 1]; NaN becomes +0.
inline float saturated(float x) { return x > 0 ? (x < 1 ? x : 1.f) : 0.f; }

// a + b rounded to odd: to the neighbour with an odd last bit, if it is not exact. What then rounds it to fewer bits,
// by two or more, rounds a + b itself.
inline double odd_sum(double a, double b) {
  const double sum = a + b;
  const double of_b = sum - a;
  const double error = (a - (sum - of_b)) + (b - of_b);
  const auto bits = std::bit_cast<uint64_t>(sum);
  const bool finite = (bits & 0x7ff0000000000000u) != 0x7ff0000000000000u;
  const bool is_off = (error != 0) & finite & !(bits & 1);
  const uint64_t step = (error > 0) == (sum > 0) ? 1 : ~uint64_t{0};
  return std::bit_cast<double>(is_off ? bits + step : bits);
}

// x, exact or rounded to odd.
template <Rounding kRounding>
float rounded(double x) {
  const float nearest = static_cast<float>(x);
  const float infinity = std::numeric_limits<float>::infinity();
  const bool down = kRounding == Rounding::kDown || (kRounding == Rounding::kZero && x > 0);
  if (down && static_cast<double>(nearest) > x) return std::nextafter(nearest, -infinity);
  if (!down && static_cast<double>(nearest) < x) return std::nextafter(nearest, infinity);
  return nearest;
}

}  // namespace ptx
