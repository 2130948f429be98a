// The magnitude at which a gradient counts as not finite.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace lowtide {

inline constexpr float kGradientLimit = 0x1p62f;

// Returns, as float bits, the limit below which a gradient's magnitude must stay: 2^62 after scaling, so that its
// square does not overflow, and at most infinity.
inline uint32_t gradient_limit_bits(float grad_scale) {
  const float limit = kGradientLimit / std::fabs(grad_scale);
  return std::bit_cast<uint32_t>(std::min(limit, std::numeric_limits<float>::infinity()));
}

}  // namespace lowtide
