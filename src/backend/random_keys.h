// Keys of the random bits for rounding states, for host code: portable/random.h has the definition.
#pragma once

#include <cstdint>

#include "backend/backend.h"

namespace lowtide {

// Sets the keys of step number `step` (from 1) of parameter number `param`, for all states of the item and its weights.
void set_keys(uint64_t seed, int64_t step, int64_t param, StepItem& item);

// The random numbers of a run of elements that begins with number `first` of the parameter: the first's index, in two
// halves, and how many elements, at most `n`, have consecutive indices with the same upper half.
struct RandomRun {
  uint32_t index, index_high;
  int64_t count;
};
RandomRun random_run_at(const StepItem& item, int64_t first, int64_t n);

// The key of the item's weights for elements with these bits above 32 of their index.
void weight_key_at(const StepItem& item, uint32_t index_high, uint32_t (&key)[2]);
// The item's keys for elements whose index has these bits above 32.
void keys_at(const StepItem& item, uint32_t index_high, uint32_t (&key)[kMaxStates][2]);

}  // namespace lowtide
