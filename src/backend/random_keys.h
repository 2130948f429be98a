// Keys of the random bits that round states, for host code. portable/random.h has the definition.
#pragma once

#include <cstdint>

#include "backend/backend.h"

namespace lowtide {

// Sets the keys of step number `step` (from 1) of parameter number `param` for all states and weights of the item.
void set_keys(uint64_t seed, int64_t step, int64_t param, StepItem& item);

// The random numbers of a run of elements that begins with element `first` of the parameter: the first element's index,
// in two halves, and the number of elements, at most `n`, that have consecutive indices with the same upper half.
struct RandomRun {
  uint32_t index, index_high;
  int64_t count;
};
RandomRun random_run_at(const StepItem& item, int64_t first, int64_t n);

// Returns in `key` the key of the item's weights for elements whose index has the upper half `index_high`.
void weight_key_at(const StepItem& item, uint32_t index_high, uint32_t (&key)[2]);
// Returns in `key` the keys of the item's states for elements whose index has the upper half `index_high`.
void keys_at(const StepItem& item, uint32_t index_high, uint32_t (&key)[kMaxStates][2]);

}  // namespace lowtide
