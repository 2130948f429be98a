// The bit that breaks a tie by hash, from the portable kernels, which alone define it.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace lowtide::testing::portable {
#ifndef LT_FN
#define LT_FN inline
#endif
#include "portable/types.h"
#include "portable/math.h"
#include "portable/half.h"
#include "portable/random.h"
#include "portable/sign.h"
}  // namespace lowtide::testing::portable

namespace lowtide::testing {

inline bool hashed_tie(uint64_t seed, uint64_t step, uint64_t index) {
  return portable::tie_group(seed, step, index / 32) >> (index % 32) & 1;
}

}  // namespace lowtide::testing
