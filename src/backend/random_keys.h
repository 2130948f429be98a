// Keys of the random bits that states are rounded by, for host code: portable/random.h has the definition.
#pragma once

#include <cstdint>

#include "backend/backend.h"

namespace lowtide {

// Of the step number `step` (from 1) of parameter number `param`, for all states of the item.
void set_keys(uint64_t seed, int64_t step, int64_t param, StepItem& item);

// The item's keys for elements whose index has these bits above 32.
void keys_at(const StepItem& item, uint32_t index_high, uint32_t (&key)[kMaxStates][2]);

}  // namespace lowtide
