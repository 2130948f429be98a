// Plain data that passes between norms and their kernels, for all compilers.
#pragma once

namespace lowtide {

// A block's part of the norms. For each of a rule's terms, sum * unit^2 is the sum of squares (portable/norms.h).
struct BlockNorms {
  float sum[2], unit[2];
};

}  // namespace lowtide
