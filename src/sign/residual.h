// The state behind a SignResidual, twice: as it is, and as the mean under way would leave it. The exchange fills `next`
// and swaps the two only when the mean is applied. Used by the thread of the collective's call.
#pragma once

#include <cstdint>
#include <vector>

#include "lowtide/sign_collective.h"

namespace lowtide {

struct ResidualState {
  int codec = 0;
  int64_t total = 0;  // signs of the whole
  int rank = 0, size = 1;
  int64_t first = 0, count = 0;  // the shard
  struct Values {
    std::vector<std::byte> codes;
    std::vector<float> scales;  // empty if the codec has none
  } now, next;

  float* scales(Values& of) { return of.scales.empty() ? nullptr : of.scales.data(); }
};

struct SignResidual::Impl : ResidualState {};

}  // namespace lowtide
