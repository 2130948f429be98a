// Running error analysis: a double beside a bound for how far float32 arithmetic may be from it. Every operation is one
// rounding, of 2^-24 of its result or of the smallest denormal.
#pragma once

#include <algorithm>
#include <cmath>

namespace lowtide::testing {

struct Bounded {
  double value = 0, error = 0;

  static constexpr double kRounding = 0x1p-24, kTiny = 0x1p-149;

  // A number that float32 holds exactly.
  static Bounded exact(double x) { return {x, 0}; }
  // x, rounded to float32 once.
  static Bounded rounded(double x) { return Bounded{x, 0}.after_rounding(); }

  bool is_zero() const { return value == 0 && error == 0; }
  Bounded after_rounding() const {
    if (is_zero()) return *this;
    return {value, error + kRounding * (std::fabs(value) + error) + kTiny};
  }
};

inline Bounded operator-(Bounded a) { return {-a.value, a.error}; }
inline Bounded operator+(Bounded a, Bounded b) {
  if (a.is_zero()) return b;
  if (b.is_zero()) return a;
  return Bounded{a.value + b.value, a.error + b.error}.after_rounding();
}
inline Bounded operator-(Bounded a, Bounded b) { return a + -b; }
inline Bounded operator*(Bounded a, Bounded b) {
  if (a.is_zero() || b.is_zero()) return {};
  return Bounded{a.value * b.value, std::fabs(a.value) * b.error + std::fabs(b.value) * a.error + a.error * b.error}
      .after_rounding();
}
// b's error is below its value.
inline Bounded operator/(Bounded a, Bounded b) {
  if (a.is_zero()) return {};
  const double least = std::fabs(b.value) - b.error, quotient = a.value / b.value;
  return Bounded{quotient, (a.error + std::fabs(quotient) * b.error) / least}.after_rounding();
}
inline Bounded sqrt(Bounded a) {
  if (a.is_zero()) return {};
  const double root = std::sqrt(std::max(a.value, 0.0));
  const double below = root - std::sqrt(std::max(a.value - a.error, 0.0));
  return Bounded{root, std::max(below, std::sqrt(a.value + a.error) - root)}.after_rounding();
}

}  // namespace lowtide::testing
