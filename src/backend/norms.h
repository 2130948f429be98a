// What crosses the border between norms and their kernels, for all compilers.
#pragma once

namespace lowtide {

// Of a block and each of a rule's terms (portable/norms.h): sum * unit^2 is the sum of its squares.
struct BlockNorms {
  float sum[2], unit[2];
};

}  // namespace lowtide
