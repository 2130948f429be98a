// Plain data that crosses the border between norms and their kernels, for all compilers.
#pragma once

namespace lowtide {

// A block's part of the norms: sum * unit^2 is the sum of squares of each of a rule's terms (portable/norms.h).
struct BlockNorms {
  float sum[2], unit[2];
};

}  // namespace lowtide
