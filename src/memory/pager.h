// Streams chunks through a ring of slots: read k+1 | step k | write k-1, on three lanes that run side by side. Knows
// nothing of devices or disks; what a lane is, is the business of Lanes. Every order that matters is an explicit wait.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/plan.h"

namespace lowtide {

enum class Lane : int { kIn, kStep, kOut };

// Work is queued in order on each lane and may run late. An implementation may also do it at once, and may throw from
// any call; the pager then stops queueing.
class Lanes {
 public:
  using Event = int64_t;
  static constexpr Event kNone = -1;  // has happened

  virtual ~Lanes() = default;
  virtual void read(int chunk, int slot) = 0;   // on kIn: the chunk's record into the slot
  virtual void step(int chunk, int slot) = 0;   // on kStep: in the slot's memory; slot -1: the chunk is resident
  virtual void write(int chunk, int slot) = 0;  // on kOut: the slot back to the chunk's record
  // All that is queued on the lane so far. Events stay valid until the end of the next step.
  virtual Event record(Lane lane) = 0;
  // What is queued on the lane from here on runs after the event.
  virtual void wait(Lane lane, Event event) = 0;
};

class Pager {
 public:
  // Throws kInvalidArgument if the plan has no slot for what it streams, or a chunk both or neither ways.
  explicit Pager(Plan plan);
  const Plan& plan() const { return plan_; }

  // Queues the work of one step: every chunk that is wanted (empty: all of them) once, in order within each set;
  // resident chunks spread evenly among the streamed ones, so that transfers go on beneath them. Slots are free again
  // when their write has happened, which the next step waits for.
  //
  // What a lane throws passes through. The work queued until then stands: the chunks whose write, or resident step, was
  // queued get the new state once the lanes have run, the others keep the old one, whole. Slots may be in use by work
  // that no event stands for, so the lanes must have finished (or dropped) all of it before the next step, of this
  // pager or of another on the same slots.
  void step(Lanes& lanes, const std::vector<bool>& wanted = {});

  // Queues the reads that the next step begins with, so that they run while the caller does something else. Taken to be
  // those of the last step; if the next one wants other chunks, it reads again.
  void prefetch(Lanes& lanes);
  // Forgets them, for another use of the slots. The lanes must have finished.
  void forget();
  bool has_prefetched() const { return prefetched_ > 0; }

 private:
  void start_over(Lanes& lanes);
  void queue(Lanes& lanes);
  void load(Lanes& lanes, size_t k);

  Plan plan_;
  std::vector<int> resident_;            // the resident chunks, in the order of the step
  std::vector<int> streaming_;           // the streamed chunks that the step wants
  std::vector<int> staying_;             // the resident ones
  std::vector<Lanes::Event> free_;       // of each slot: its last write
  std::vector<Lanes::Event> loaded_;     // of each slot: a read that no step has waited for
  Lanes::Event written_ = Lanes::kNone;  // the last write of all
  size_t prefetched_ = 0;                // of streaming_: those that are in their slots already
};

}  // namespace lowtide
