// The quanta by which squares of gradients are split, for the kernels of all instruction sets.
#pragma once

#include <cstdint>

#include "core/exact_sum.h"

namespace lowtide::cpu {

// kCountBits: log2 of the additions to a double before it is emptied. An addend has at most 2^(kPartBits - 1) quanta
// either way, because parts are rounded to nearest, so the double stays in the binade of 1.5 * 2^52 quanta, which has
// room for 2^51 either way.
inline constexpr int kCountBits = 10, kPartBits = 51 - kCountBits + 1;

// Returns the exponent of the quantum of part k of squares below 4^top.
constexpr int quantum(int top, int k) { return 2 * top - (kPartBits - 1) - kPartBits * k; }

inline constexpr uint32_t kInfinity = 0x7f800000u;
// Returns 2^exponent as float bits: the smallest float for an exponent below the range, infinity for one above it.
inline uint32_t power_bits(int exponent) {
  if (exponent > 127) return kInfinity;
  if (exponent >= -126) return static_cast<uint32_t>(exponent + 127) << 23;
  return exponent > -149 ? 1u << (exponent + 149) : 1u;
}
// Returns the exponent of the smallest power of two above a nonzero magnitude.
inline int top_of(uint32_t magnitude) {
  const int field = static_cast<int>(magnitude >> 23);
  return field ? field - 126 : 32 - __builtin_clz(magnitude) - 149;
}

// Magnitudes as float bits. smallest: the smallest nonzero magnitude, minus 1.
struct Magnitudes {
  uint32_t largest = 0, smallest = 0xffffffffu;
};

// Magnitudes that one pass can add: bits in [low, high).
struct Window {
  int top;
  uint32_t low, high;
};

// Adds counts of quanta, ordered from the largest quantum to the smallest.
template <int kParts>
void add_parts(int64_t (&count)[kParts], int top, ExactSum& sum) {
  for (int k = kParts - 1; k > 0; --k) {  // carries from smaller parts to larger ones
    const int64_t carried = count[k] >> kPartBits;
    count[k] -= carried << kPartBits;
    count[k - 1] += carried;
  }
  for (int k = 0; k < kParts; ++k) sum.add_count(static_cast<uint64_t>(count[k]), quantum(top, k));
}

}  // namespace lowtide::cpu
