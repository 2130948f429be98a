#include "core/exact_sum.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace lowtide {

void ExactSum::add(float x, int exponent) {
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

void ExactSum::carry(uint64_t (&limbs)[kLimbs]) {
  for (int i = 0; i + 1 < kLimbs; ++i) {
    limbs[i + 1] += limbs[i] >> kLimbBits;
    limbs[i] &= 0xffffffffu;
  }
}

double ExactSum::value() const {
  if (!finite_) return std::numeric_limits<double>::quiet_NaN();
  uint64_t limbs[kLimbs];
  std::memcpy(limbs, limbs_, sizeof limbs);
  carry(limbs);  // the same limbs for the same sum
  double sum = 0;
  for (int i = 0; i < kLimbs; ++i) sum += std::ldexp(static_cast<double>(limbs[i]), kLowest + i * kLimbBits);
  return sum;
}

}  // namespace lowtide
