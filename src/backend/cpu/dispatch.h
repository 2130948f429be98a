// Selects the kernels of one instruction set by its Highway target bit, so that each optimizer can choose its own
// (tests and benchmarks compare instruction sets inside one process).
#pragma once

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

namespace lowtide::cpu {

// Returns the index of `target`, one bit that this CPU supports, in a HWY_EXPORT table. The table has a single entry if
// only one instruction set is compiled.
inline size_t dispatch_index(int64_t target) {
  if constexpr ((HWY_TARGETS & (HWY_TARGETS - 1)) == 0) return 0;
  hwy::ChosenTarget chosen;
  chosen.Update(target);
  return chosen.GetIndex();
}

}  // namespace lowtide::cpu
