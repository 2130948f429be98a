// Where each chunk of a device's state lives when host memory, too, is short: on the device, in pinned host memory or
// on disk. A pure function of sizes and budgets.
//
// Two stacked plans of plan.h. The first keeps the most bytes on the device beside a ring of slots
// there, so that the least crosses the link. The second divides what is left between host memory and disk, beside a
// ring of pinned slots through which chunks on disk come and go, so that the least crosses the disk's. A chunk on
// disk crosses both links.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/plan.h"

namespace lowtide {

enum class Tier : uint8_t { kDevice, kHost, kDisk };

// Bytes of state that each tier may hold; -1: no limit.
struct Budget {
  int64_t device = -1;  // its slots included
  int64_t host = -1;    // its slots included
  int64_t disk = -1;    // of the scratch file
  int64_t chunk = 0;    // the unit of moving, a multiple of kPageBytes; 0: chosen from the budget
};

struct TierPlan {
  std::vector<Tier> tier;  // of each chunk; empty chunks are on the device
  // All chunks, and its slots on the device. Read and written bytes are those of the link, per step.
  Plan device;
  // Only the chunks that are not on the device, in the order of device.streamed, and its slots in pinned host memory.
  // Read and written bytes are those of the disk, per step.
  Plan host;
};

// chunk_bytes: in the order of a step, as in PlanInput. max_slots: of each ring, 1 to 64.
// Rings have fewer slots than three only where the budgets cannot hold three: first the host's, then the device's.
// Throws kInvalidArgument as make_plan() does; the message says "at least N bytes" of which budget, and N suffice.
TierPlan plan_tiers(const std::vector<int64_t>& chunk_bytes, const Budget& budget, int max_slots = 4);

}  // namespace lowtide
