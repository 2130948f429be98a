#include "bnb/map8.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace lowtide::bnb {
namespace host {
namespace {
#include "portable/portable.h"
}  // namespace
}  // namespace host

static_assert(sizeof host::kDynamic8SignedBits == Map8::kSize * sizeof(float));

Map8::Map8(const float* values, bool second_moment) {
  std::copy_n(values, kSize, value_);
  for (int i = 0; i + 1 < kSize; ++i) midpoint_[i] = (value_[i] + value_[i + 1]) * 0.5f;
  if (!second_moment) return;
  const float* first = std::upper_bound(value_, value_ + kSize, 0.f);
  smallest_positive_ = std::min(static_cast<int>(first - value_), kSize - 1);
}

bool Map8::is_dynamic(const float* values, bool is_signed) {
  return std::memcmp(values, is_signed ? host::kDynamic8SignedBits : host::kDynamic8UnsignedBits,
                     kSize * sizeof(float)) == 0;
}

void Map8::decode(const uint8_t* codes, float absmax, int n, float* values) const {
  for (int i = 0; i < n; ++i) values[i] = value_[codes[i]] * absmax;
}

// Returns the number of midpoints below x by bisection, in which each comparison gives one bit of the code. As
// branches, half of the comparisons would be mispredicted (10 times slower).
int Map8::nearest(float x) const {
  int code = 0;
  for (int bit = 7; bit >= 0; --bit) code += static_cast<int>(x > midpoint_[code + (1 << bit) - 1]) << bit;
  return code;
}

float Map8::encode(float* values, int n, uint8_t* codes) const {
  constexpr float kLargest = std::numeric_limits<float>::max();
  float absmax = 0;
  for (int i = 0; i < n; ++i) {
    if (values[i] > kLargest) values[i] = kLargest;
    if (values[i] < -kLargest) values[i] = -kLargest;
    if (absmax < std::fabs(values[i])) absmax = std::fabs(values[i]);
  }
  const float inverse = host::block_inverse(absmax, 1.f);
  for (int i = 0; i < n; ++i) {
    const int code = nearest(values[i] * inverse);
    codes[i] = static_cast<uint8_t>(values[i] > 0 ? std::max(code, smallest_positive_) : code);
  }
  return absmax;
}

}  // namespace lowtide::bnb
