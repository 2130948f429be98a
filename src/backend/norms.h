// Plain data that norm kernels return, for all compilers.
#pragma once

namespace lowtide {

// A block's part of the norms. For each term of a rule, sum * unit^2 is the sum of squares (portable/norms.h).
struct BlockNorms {
  float sum[2], unit[2];
};

}  // namespace lowtide
