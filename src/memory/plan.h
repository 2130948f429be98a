// Divides state: the size of chunks, the cut, where each chunk lives and how the others move. Pure functions of sizes,
// budgets and rates, for stores and for forecasts of them.
//
// A list of tiers says where chunks may live: they are stepped in the first, and chunks that do not fit in one tier
// live in the next. The same holds between any two adjacent tiers.
//
// A step reads all chunks in one fixed cyclic order, so the best policy is known: keep a fixed set resident and stream
// the others through a ring of slots. Each streamed chunk is read once and written once a step: the traffic of a step
// is 2 * (total - resident), and no policy that keeps `resident` bytes across steps moves less. (Least recently used
// moves everything as soon as one chunk too many is used.)
//
// A budget that holds everything needs no ring. Otherwise the ring comes first. Three slots let reading, stepping and
// writing overlap, so there are fewer only if the budgets cannot hold three (or max_slots says so). A fourth slot only
// smooths the disk's pauses; it is taken if it raises the traffic by at most 1/16. Beside that ring the resident set
// with the most bytes is chosen. If sizes differ, keeping the largest chunks makes the slots smaller, and the choice
// weighs that. It is exact (a subset sum over the sizes' common unit) unless that exceeds a bounded amount of work;
// then most of the budget is filled largest first, and only the rest exactly. Among chunks of one size, the first in
// the order of a step are resident. If a third tier is behind, the nearest ring has fewer slots if the other tiers
// could not hold the remainder with three, and no fourth slot if that takes one of three behind it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lowtide/memory.h"
#include "memory/chunk.h"

namespace lowtide {

enum class Tier : uint8_t { kDevice, kHost, kDisk };

struct TierLimit {
  Tier tier = Tier::kHost;
  int64_t bytes = -1;  // for state, slots included; -1: no limit
  int64_t taken = 0;   // the part of it used by state outside this plan
  // Bytes per second from this tier to the one before it, and back; 0: unknown.
  double read_rate = 0, write_rate = 0;
};

struct PlanInput {
  // In the order of a step; multiples of kPageBytes (including 0), possibly of different sizes.
  std::vector<int64_t> chunk_bytes;
  std::vector<TierLimit> tiers = {TierLimit{}};  // the nearest first
  // 1 to 64: the most slots of a ring. 0: no ring; chunks that are not resident are stepped in place.
  int max_slots = 4;
  double step_rate = 0;  // bytes of state per second, for the predicted time; 0: unknown
  // For the error if one tier does not hold everything: what it must have, if that is more than the chunks take.
  int64_t whole_bytes = 0;
};

// One tier, and the ring there through which the chunks behind it pass.
struct TierPlan {
  std::vector<bool> resident;  // for each chunk: here or in a nearer tier; empty chunks are
  std::vector<int> streamed;   // the other chunks, in the order of the step
  int slots = 0;               // the ring's slots; 0 if nothing is streamed, or chunks are stepped in place
  int64_t slot_bytes = 0;      // the largest streamed chunk
  int64_t resident_bytes = 0;  // here, not in nearer tiers
  int64_t streamed_bytes = 0;  // read in a step, and written
  int64_t bytes = 0;           // resident + slots: never above the limit
};

struct Plan {
  std::vector<TierPlan> tiers;  // same as in PlanInput; nothing streams through the last
  std::vector<Tier> tier;       // each chunk's tier
  // Predicted for a step, neglecting the first read and the last write: seconds of stepping, of the device's link, of
  // the disk, and of all three. Reads and writes share one disk and take turns: read + write; over a link they go both
  // ways at once: max(read, write). With one slot, step, read and write add up. With n slots stepping overlaps both,
  // and a slot is read, stepped and written in turn: max(step, moving, (read + step of streamed chunks + write) / n). 0
  // if a rate that the figure needs is unknown.
  double step_seconds = 0, link_seconds = 0, disk_seconds = 0, seconds = 0;
};

// Throws kInvalidArgument if there is no such plan: a limit below the needs of the smallest ring, no tier for state
// that does not fit, or a last tier that does not hold the remainder. The message says "at least N bytes" of which
// tier; exactly N suffice. Also throws for sizes, limits, slots or rates out of range, and for more than 2^56 bytes in
// total.
Plan make_plan(const PlanInput& input);

// The plan that keeps this set (one entry per chunk) whatever its size, with `slots` if something is streamed.
TierPlan plan_keeping(std::vector<bool> resident, const std::vector<int64_t>& chunk_bytes, int slots);

// The slots that reading, stepping and writing need to overlap.
inline constexpr int kOverlappingSlots = 3;

// -- The state of parameters

struct StoreOptions {
  Memory memory;
  bool on_device = false;  // chunks are stepped on the device, and wait in host memory; otherwise stepped in host
                           // memory
  bool in_place = false;   // chunks that are not resident are stepped in place, without slots
  int64_t taken = 0;       // the part of memory.host used by other state
  // Bytes of the device that replace memory.device, raised to three slots of the largest chunk (at most memory.device),
  // without effect on the size of chunks.
  std::optional<int64_t> device_now = {};
};

// Bytes of state per second, for predicted times; 0: unknown.
struct StoreRates {
  double link = 0;  // each way
  double read = 0, write = 0;
  double step = 0;
};

struct StorePlan {
  std::vector<Chunk> added;          // the chunks of the new parameters
  std::vector<int64_t> chunk_bytes;  // all chunks: the existing ones, then the new ones
  Plan plan;                         // over all chunks
};

constexpr int64_t kLargestChunk = 16 << 20;  // if Memory::chunk is 0

// Cuts the states of `params` into chunks after the existing ones, of `before` bytes each, and plans for all. Throws
// kInvalidArgument like make_plan(), and for more than 2^22 chunks.
StorePlan plan_store(const StoreOptions& options, std::vector<int64_t> before, std::span<const ShapedParam> params,
                     const StoreRates& rates = {});

}  // namespace lowtide
