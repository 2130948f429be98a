// A sum of floats times powers of two that is exact, so that it does not depend on the order of its terms: a number of
// fixed point, wide enough for all of them.
#pragma once

#include <cstdint>

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

}  // namespace lowtide
