// Divides state: chooses the size of chunks, cuts state into chunks, and decides where each chunk lives and how chunks
// move. Pure functions of sizes, budgets and rates, for stores and for forecasts.
//
// A list of tiers says where chunks may live. Chunks are stepped in the first tier, and chunks that do not fit in one
// tier live in the next. The rules below hold between any two adjacent tiers.
//
// Steps read all chunks in one fixed cyclic order, so the best policy is known: keep a fixed set resident and stream
// the other chunks through a ring of slots. Each streamed chunk is read once and written once per step, so a step moves
// 2 * (total - resident) bytes, and no policy that keeps `resident` bytes across steps moves less. (A
// least-recently-used cache moves everything if even one chunk does not fit.)
//
// A budget that holds everything needs no ring. Otherwise the ring comes first. Three slots let reading, stepping and
// writing overlap, so a ring has fewer slots only if the budgets cannot hold three (or max_slots is lower). A fourth
// slot only smooths pauses of the disk; it is used if it raises the traffic by at most 1/16. The rest of the budget
// goes to the resident set with the most bytes. If sizes differ, keeping the largest chunks makes the slots smaller,
// and the choice takes that into account. The choice is exact (a subset sum over the sizes' common unit) unless that
// exceeds a bounded amount of work; then most of the budget is filled with the largest chunks first, and only the rest
// is filled exactly. Among chunks of equal size, the first in step order are resident. With a third tier, the nearest
// ring has fewer than three slots if the tiers behind it could not hold the remainder otherwise, and no fourth slot if
// that would leave the ring behind it with fewer than three.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lowtide/memory.h"
#include "memory/chunk.h"

namespace lowtide {

enum class Tier : uint8_t { kDevice, kHost, kDisk };

struct TierLimit {
  Tier tier = Tier::kHost;
  int64_t bytes = -1;  // for state, including slots; -1 for no limit
  int64_t taken = 0;   // the part of `bytes` that state outside this plan uses
  // Bytes per second from this tier to the previous one, and back; 0 if unknown.
  double read_rate = 0, write_rate = 0;
};

struct PlanInput {
  // In step order; multiples of kPageBytes, which may differ and may be 0.
  std::vector<int64_t> chunk_bytes;
  std::vector<TierLimit> tiers = {TierLimit{}};  // the nearest tier first
  // The largest number of slots of a ring: 1 to 64, or 0 for no ring; then the other chunks are stepped in place.
  int max_slots = 4;
  double step_rate = 0;  // bytes of state per second, for the predicted time; 0 if unknown
  // If a single tier cannot hold everything, the error asks for this many bytes if they exceed the chunks' size.
  int64_t whole_bytes = 0;
};

// One tier, and its ring, through which chunks of the next tiers pass.
struct TierPlan {
  std::vector<bool> resident;  // for each chunk: true if it is here or in a nearer tier, or is empty
  std::vector<int> streamed;   // the other chunks, in step order
  int slots = 0;               // the ring's slots; 0 if nothing is streamed or chunks are stepped in place
  int64_t slot_bytes = 0;      // the largest streamed chunk
  int64_t resident_bytes = 0;  // in this tier, without nearer tiers
  int64_t streamed_bytes = 0;  // read, and also written, in each step
  int64_t bytes = 0;           // resident chunks and slots; never above the limit
};

struct Plan {
  std::vector<TierPlan> tiers;  // as in PlanInput; nothing streams through the last tier
  std::vector<Tier> tier;       // each chunk's tier
  // The predicted seconds of a step, neglecting the first read and the last write: for stepping, for the device's link,
  // for the disk, and in total. Reads and writes share a disk and take turns, so the disk takes read + write; a link
  // carries both directions at once, so it takes max(read, write). With one slot, step, read and write add up. With n
  // slots, stepping overlaps both, but each slot is read, stepped and written in turn, so a step takes max(step,
  // moving, (read + step of streamed chunks + write) / n). A figure is 0 if a rate that it needs is unknown.
  double step_seconds = 0, link_seconds = 0, disk_seconds = 0, seconds = 0;
};

// Throws kInvalidArgument if no plan is possible because a limit is below the needs of the smallest ring, because no
// tier is left for state that does not fit, or because the last tier cannot hold the remainder. The message names the
// tier and asks for "at least N bytes"; exactly N bytes suffice. Also throws for sizes, limits, slots or rates out of
// range, and for more than 2^56 bytes in total.
Plan make_plan(const PlanInput& input);

// Returns the plan that keeps this set (one entry per chunk), whatever its size, with `slots` slots if chunks stream.
TierPlan plan_keeping(std::vector<bool> resident, const std::vector<int64_t>& chunk_bytes, int slots);

// The number of slots with which reading, stepping and writing overlap.
inline constexpr int kOverlappingSlots = 3;

// -- The state of parameters

struct StoreOptions {
  Memory memory;
  bool on_device = false;  // chunks wait in host memory and are stepped on the device; otherwise they are
                           // stepped in host memory
  bool in_place = false;   // chunks that are not resident are stepped in place, without slots
  int64_t taken = 0;       // the part of memory.host that other state uses
  // Replaces memory.device without changing the size of chunks. Raised to three slots of the largest chunk, but not
  // above memory.device.
  std::optional<int64_t> device_now = {};
};

// Bytes of state per second, for predicted times; 0 if unknown.
struct StoreRates {
  double link = 0;  // each way
  double read = 0, write = 0;
  double step = 0;
};

struct StorePlan {
  std::vector<Chunk> added;          // the chunks of the new parameters
  std::vector<int64_t> chunk_bytes;  // all chunks: the existing chunks, then the new ones
  Plan plan;                         // over all chunks
};

constexpr int64_t kLargestChunk = 16 << 20;  // the limit if Memory::chunk is 0

// Cuts the states of `params` into chunks and plans for the existing chunks, whose sizes are `before`, and the new
// ones. Throws kInvalidArgument like make_plan(), and for more than 2^22 chunks.
StorePlan plan_store(const StoreOptions& options, std::vector<int64_t> before, std::span<const ShapedParam> params,
                     const StoreRates& rates = {});

}  // namespace lowtide
