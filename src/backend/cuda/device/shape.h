// The shapes of launches, as plain functions for host code and its tests.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cuda/device/launch.h"

namespace lowtide::cuda_kernels {

inline constexpr int kThreads = kernels::kGroupSize;
inline constexpr int kWarps = kThreads / 32;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// Returns the number of thread blocks for `units` units of work, of which a block takes `at_once` at a time. Returns no
// more blocks than are resident together, because each loads tables once and then continues from unit to unit.
constexpr unsigned grid_for(int64_t units, int64_t at_once, int processors, int resident) {
  const int64_t most = int64_t{std::max(processors, 1)} * std::max(resident, 1);
  return static_cast<unsigned>(std::min(ceil_div(units, at_once), most));
}

// Returns the number of tiles in an item of this many blocks.
constexpr int64_t tiles_of(int64_t blocks) { return ceil_div(blocks, kTileBlocks); }

}  // namespace lowtide::cuda_kernels
