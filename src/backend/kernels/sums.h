// Sums over gradients as kernels make them: plain data, for all compilers.
#pragma once

#include <cstdint>

namespace lowtide::kernels {

// The numbers of 32 bits of an exact sum of squares, the lowest first, as ExactSum has them.
inline constexpr int kSumLimbs = 28;
// The exponent of bit 0 of the lowest, and of the square of the smallest float: bit 0 of its mantissa's square.
inline constexpr int kSumLowest = -405, kLeastSquare = -298;

// The sum in parts, so that few work-items meet at a word.
struct SumParts {
  static constexpr int kParts = 64;
  uint32_t limbs[kParts][kSumLimbs];  // zeros at first
  uint32_t least, unused;             // the complement of the largest magnitude; all ones at first
};

// All of them.
struct Sums {
  int64_t limbs[kSumLimbs];  // with pending carries
  uint32_t largest;          // largest magnitude as float bits; more than infinity's bits if there is a NaN
};

}  // namespace lowtide::kernels
