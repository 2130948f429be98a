// How a store divides state: the size of chunks, the cut, and the plan over them. Pure functions, for the store and for
// predictions of it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "memory/chunk.h"
#include "memory/tier_plan.h"

namespace lowtide {

struct StoreOptions {
  Budget budget;
  std::string disk;  // directory for the scratch file; "": no disk
  // Chunks are stepped on the device and wait in host memory, or behind that on disk. Otherwise they are stepped in
  // host memory and wait on disk.
  bool on_device = false;
  bool in_place = false;  // chunks that are not resident are stepped where they wait, without slots
  // budget.device is raised to what three slots of the largest chunk take, or to `device_limit` (-1: none) if that is
  // less, and has no part in the size of chunks.
  bool at_least_slots = false;
  int64_t device_limit = -1;
};

// Bytes of state per second, for predicted times; 0: unknown.
struct StoreRates {
  double read = 0, write = 0, step = 0;
};

struct StorePlan {
  std::vector<Chunk> added;          // the chunks of the new parameters
  std::vector<int64_t> chunk_bytes;  // of all chunks: those there were, then the new ones
  Plan plan;                         // over all chunks
  // TierPlan::host, for a device with a disk; else it has no chunks.
  Plan host;
  std::vector<bool> on_disk;  // by chunk; empty: none

  Tier tier(size_t chunk) const {
    return plan.resident[chunk] ? Tier::kDevice : !on_disk.empty() && on_disk[chunk] ? Tier::kDisk : Tier::kHost;
  }
};

constexpr int64_t kLargestChunk = 16 << 20;  // where chunk_bytes is 0

// Cuts the states of `params` into chunks behind those that there are, of `before` bytes each, and plans for all.
// Throws kInvalidArgument where make_plan() does, and for more than 2^22 chunks.
StorePlan plan_store(const StoreOptions& options, std::vector<int64_t> before, std::span<const ShapedParam> params,
                     const StoreRates& rates = {});

}  // namespace lowtide
