// A caller's map from 8-bit codes to 256 values, which are in units of the block's absmax.
#pragma once

#include <cstdint>

namespace lowtide::bnb {

class Map8 {
 public:
  static constexpr int kSize = 256;

  Map8() = default;
  // `values` has kSize ascending, finite entries. With `second_moment`, the state is never negative, and a positive
  // value gets a positive entry if there is one.
  Map8(const float* values, bool second_moment);

  // Returns true if these are, bit for bit, the values of the codec dynamic8.
  static bool is_dynamic(const float* values, bool is_signed);

  // Sets values[0, n) to map[code] * absmax.
  void decode(const uint8_t* codes, float absmax, int n, float* values) const;
  // Encodes each value / absmax to the nearest entry, or to the lower of two equally near entries. Saturates values at
  // the largest float. Returns the absmax.
  float encode(float* values, int n, uint8_t* codes) const;

 private:
  int nearest(float x) const;

  float value_[kSize];
  float midpoint_[kSize - 1];  // ascending
  int smallest_positive_ = 0;  // a code for second moments, else 0
};

}  // namespace lowtide::bnb
