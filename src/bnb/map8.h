// A caller's map of the 256 values of 8-bit codes, in units of their block's absmax.
#pragma once

#include <cstdint>

namespace lowtide::bnb {

class Map8 {
 public:
  static constexpr int kSize = 256;

  Map8() = default;
  // values: [kSize], ascending and finite. second_moment: the state is never negative, and a positive value gets a
  // positive entry if there is one.
  Map8(const float* values, bool second_moment);

  // True if these are, bit for bit, the values of the codec dynamic8.
  static bool is_dynamic(const float* values, bool is_signed);

  // values[0, n) = map[code] * absmax.
  void decode(const uint8_t* codes, float absmax, int n, float* values) const;
  // Encodes each value / absmax to the nearest entry, of two equally near ones the lower; saturates values at the
  // largest float and returns the absmax.
  float encode(float* values, int n, uint8_t* codes) const;

 private:
  int nearest(float x) const;

  float value_[kSize];
  float midpoint_[kSize - 1];  // ascending
  int smallest_positive_ = 0;  // code; for second moments, else 0
};

}  // namespace lowtide::bnb
