// Where each chunk of state lives and how the rest moves: a pure function of sizes, budgets and rates.
//
// A step reads all chunks in one fixed cyclic order, so the best policy is known: keep a fixed set resident and stream
// the others through a ring of slots. Each streamed chunk is read once and written once a step: the traffic of a step
// is 2 * (total - resident), and no policy that keeps `resident` bytes across steps moves less. (Least recently used
// moves everything as soon as one chunk too many is used.)
//
// A budget that holds everything needs no ring. Otherwise the ring comes first. Three slots let reading, stepping and
// writing run at once, so there are fewer only where the budgets cannot hold three (or max_slots says so). A fourth
// slot only evens out the disk's pauses; it is taken where it raises the traffic by 1/16 at most. Beside that ring the
// resident set with the most bytes is chosen. Where sizes differ, keeping the largest chunks makes the slots smaller,
// and the choice weighs that. It is exact (a subset sum over the sizes' common unit) unless that would take more than a
// bounded amount of work; then most of the budget is filled largest first, and only the rest exactly. Among chunks of
// one size, the first in the order of a step are resident.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lowtide {

struct PlanInput {
  std::vector<int64_t>
      chunk_bytes;           // in the order of a step; multiples of kPageBytes (0 too), may be of different sizes
  int64_t ram_budget = -1;   // bytes of RAM for state, slots included; -1 = no limit
  int64_t disk_budget = -1;  // bytes on disk, for the streamed chunks; -1 = no limit
  bool has_disk = false;
  // For the message where there is no disk for what does not fit: what RAM must have, if that is more than the chunks
  // take.
  int64_t whole_bytes = 0;
  // For messages: where chunks are stepped, and where the others wait.
  const char* near = "RAM";
  const char* far = "disk";
  // 1 to 64: the most slots the ring may have. 0: there is none, chunks that are not resident are stepped where they
  // wait.
  int max_slots = 4;
  // Bytes of state per second, for the predicted time; 0 = unknown.
  double read_rate = 0, write_rate = 0, step_rate = 0;
  bool both_ways = false;  // reads and writes do not take turns: a device's link, not a disk
};

struct Plan {
  std::vector<bool> resident;  // of each chunk; empty chunks always are
  std::vector<int> streamed;   // the other chunks, in the order of the step
  int slots = 0;               // of the ring; 0 if nothing is streamed, or it is stepped where it waits
  int64_t slot_bytes = 0;      // the largest streamed chunk
  int64_t total_bytes = 0, resident_bytes = 0, streamed_bytes = 0;
  int64_t ram_bytes = 0;                      // resident + slots: never above the budget
  int64_t read_bytes = 0, written_bytes = 0;  // per step: streamed_bytes each
  // Predicted for a step, where the first read and the last write take little time. Reads and writes share one disk and
  // take turns: disk = read + write; over a link they go both ways at once: disk = max(read, write). With one slot, step,
  // read and write add up. With n slots stepping overlaps both, and a slot is read, stepped and written in turn:
  // max(step, disk, (read + step of what streams + write) / n). 0 if a rate that the figure depends on is unknown.
  double step_seconds = 0, disk_seconds = 0, seconds = 0;
};

// Throws kInvalidArgument if there is no such plan: a budget below what the smallest ring needs, no disk for state that
// does not fit, or a disk budget below the streamed bytes. The message says "at least N bytes" of which budget; exactly
// N suffice. Throws it too for sizes, budgets, slots or rates out of range, and for more than 2^56 bytes in total.
Plan make_plan(const PlanInput& input);

// The plan that keeps this set (one entry for each chunk) whatever that takes, with `slots` if something is streamed
// and without predicted times.
Plan plan_keeping(std::vector<bool> resident, const std::vector<int64_t>& chunk_bytes, int slots);

// The slots that reading, stepping and writing need to overlap.
inline constexpr int kOverlappingSlots = 3;

}  // namespace lowtide
