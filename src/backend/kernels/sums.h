// Sums that kernels make: plain data, for all compilers.
#pragma once

#include <cstdint>

namespace lowtide::kernels {

// The 32-bit limbs of an exact sum, lowest first, as in ExactSum.
inline constexpr int kSumLimbs = 28;
// The exponent of bit 0 of the lowest limb, and of bit 0 of the smallest float's mantissa.
inline constexpr int kSumLowest = -405, kLeastFloat = -149;

// The sum in parts, so that few work-items contend for a word.
struct SumParts {
  static constexpr int kParts = 64;
  uint32_t limbs[kParts][kSumLimbs];  // initially zero
  uint32_t least, unused;             // the complement of the largest magnitude; initially all ones
};

// The sum of all parts.
struct Sums {
  int64_t limbs[kSumLimbs];  // with pending carries
  uint32_t largest;          // largest magnitude as float bits; above infinity's bits if there is a NaN
};

// The sums of a rule's terms over all parameters, in the order of TermSums.
inline constexpr int kTermSums = 3;

// The sums of squares of a parameter's terms (portable/norms.h). They can be built in any order; the sums of a
// parameter's shards are added limb by limb.
struct NormSums {
  int64_t limbs[2][kSumLimbs];  // including pending carries
  int64_t others[2];            // blocks whose sum is not finite
};

// Accompanies a DeviceItem of a rule with norms; the input of put_norms().
struct DeviceNorms {
  NormSums* sums;  // nullptr: the item's arguments are complete
  int64_t adds;    // not 0: the item must first add its own blocks to the sums
  double lr, eps, weight_decay, trust_coefficient, max_unorm;
  double norm[2];
};

}  // namespace lowtide::kernels
