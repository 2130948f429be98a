// The bit that settles a tie by hash, from the dialect: it has no other definition.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace lowtide::testing::dialect {
#ifndef LT_FN
#define LT_FN inline
#endif
#include "portable/types.h"
#include "portable/math.h"
#include "portable/half.h"
#include "portable/random.h"
#include "portable/sign.h"
}  // namespace lowtide::testing::dialect

namespace lowtide::testing {

inline bool hashed_tie(uint64_t seed, uint64_t step, uint64_t index) {
  return dialect::tie_group(seed, step, index / 32) >> (index % 32) & 1;
}

}  // namespace lowtide::testing
