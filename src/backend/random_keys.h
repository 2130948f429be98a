// Keys of the random bits that states are rounded by, for host code: portable/random.h has the definition.
#pragma once

#include <cstdint>

#include "backend/backend.h"

namespace lowtide {

// Of the step number `step` (from 1) of parameter number `param`, for all states of the item and its weights.
void set_keys(uint64_t seed, int64_t step, int64_t param, StepItem& item);

// Where elements from number `first` of the parameter on stand among random numbers: the first's index, in two halves,
// and how many follow it with the next indices and the same upper half, `n` at most.
struct RandomPlace {
  uint32_t index, index_high;
  int64_t count;
};
RandomPlace place_at(const StepItem& item, int64_t first, int64_t n);

// The key of the item's weights for elements with these bits above 32 of their index.
void weight_key_at(const StepItem& item, uint32_t index_high, uint32_t (&key)[2]);
// The item's keys for elements whose index has these bits above 32.
void keys_at(const StepItem& item, uint32_t index_high, uint32_t (&key)[kMaxStates][2]);

}  // namespace lowtide
