// A sum of floats times powers of two that is exact, so that it does not depend on the order of its terms: a number of
// fixed point, wide enough for all of them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace lowtide {

class ExactSum {
 public:
  // The largest exponent and the smallest that add() takes, and how many terms there may be.
  static constexpr int kLargestExponent = 256, kSmallestExponent = -256;
  static constexpr int64_t kMostTerms = int64_t{1} << 48;

  // Adds x * 2^exponent, x >= 0. What is not finite makes the sum NaN.
  void add(float x, int exponent);

  // Rounded to double, always alike: equal sums are equal bits. 0 without terms.
  double value() const;

 private:
  static constexpr int kLimbBits = 32;
  static constexpr int kLowest = kSmallestExponent - 149;  // the exponent of bit 0: of the smallest float's
  // Up to the largest float, times 2^kLargestExponent, kMostTerms times.
  static constexpr int kLimbs = (128 + kLargestExponent + 48 - kLowest) / kLimbBits + 2;
  static constexpr int64_t kTermsBetweenCarries = int64_t{1} << 31;

  static void carry(uint64_t (&limbs)[kLimbs]);

  uint64_t limbs_[kLimbs] = {};  // of kLimbBits each, and what is to be carried
  int64_t terms_ = 0;            // since carries
  bool finite_ = true;
};

inline void ExactSum::add(float x, int exponent) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t field = bits >> 23 & 0xff;
  if (field == 0xff) finite_ = false;
  const uint64_t mantissa = (bits & 0x7fffffu) | (field ? 0x800000u : 0u);
  // x = mantissa 2^(max(field, 1) - 150)
  const int at = static_cast<int>(field ? field : 1) - 150 + exponent - kLowest;
  const uint64_t shifted = mantissa << (at % kLimbBits);
  limbs_[at / kLimbBits] += shifted & 0xffffffffu;
  limbs_[at / kLimbBits + 1] += shifted >> kLimbBits;
  if (++terms_ < kTermsBetweenCarries) return;
  carry(limbs_);
  terms_ = 0;
}

inline void ExactSum::carry(uint64_t (&limbs)[kLimbs]) {
  for (int i = 0; i + 1 < kLimbs; ++i) {
    limbs[i + 1] += limbs[i] >> kLimbBits;
    limbs[i] &= 0xffffffffu;
  }
}

inline double ExactSum::value() const {
  if (!finite_) return std::numeric_limits<double>::quiet_NaN();
  uint64_t limbs[kLimbs];
  std::memcpy(limbs, limbs_, sizeof limbs);
  carry(limbs);  // the same limbs for the same sum
  double sum = 0;
  for (int i = 0; i < kLimbs; ++i) sum += std::ldexp(static_cast<double>(limbs[i]), kLowest + i * kLimbBits);
  return sum;
}

}  // namespace lowtide
