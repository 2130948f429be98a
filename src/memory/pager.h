// Streams chunks through a ring of slots: read k+1 | step k | write k-1, on three concurrent queues. With hybrid
// transfer a step itself writes to the chunk's record; with zero-copy transfer it also reads there, and there are no
// slots. The pager does not depend on devices or disks: implementations of Queues do. Every required order is an
// explicit wait.
//
// Owns only its plan and its events; one thread at a time uses it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/transfer_mode.h"
#include "memory/plan.h"

namespace lowtide {

enum class Queue : int { kIn, kStep, kOut };

// Work runs in order on each queue, possibly late. An implementation may also execute it at once, and may throw from
// any call; the pager then stops queueing.
class Queues {
 public:
  using Event = int64_t;
  static constexpr Event kNone = -1;  // is already over

  virtual ~Queues() = default;
  virtual void read(int chunk, int slot) = 0;  // on kIn: the chunk's record into the slot
  // On kStep: in the slot's memory (hybrid: from there to the chunk's record); slot -1: in the chunk's place.
  virtual void step(int chunk, int slot) = 0;
  virtual void write(int chunk, int slot) = 0;  // on kOut: the slot back to the chunk's record
  // Marks all work queued so far. Events stay valid until the end of the next step.
  virtual Event record(Queue queue) = 0;
  // Work queued on the queue from here on runs after the event.
  virtual void wait(Queue queue, Event event) = 0;
};

class Pager {
 public:
  // Throws kInvalidArgument if the plan has streamed chunks and no slot for them, or if a chunk is not either resident
  // or streamed.
  explicit Pager(TierPlan plan, TransferMode transfer = TransferMode::kCopy);
  const TierPlan& plan() const { return plan_; }

  // Queues one step: every wanted chunk (empty: all) once, in order within each set; resident chunks are spread evenly
  // among the streamed ones, so that transfers overlap with them. Slots are free again once they are written, for which
  // the next step waits.
  //
  // An exception of a queue passes through. Work queued before it stands: chunks whose write, or resident step, was
  // queued get the new state once the queues have run; the others keep the old state, whole. Events may not cover work
  // that still uses a slot, so the queues must have finished (or dropped) all of it before the next step, of this pager
  // or of another on the same slots.
  void step(Queues& queues, const std::vector<bool>& wanted = {});

  // Queues the first reads of the next step, so that they run while the caller does something else. It reads the chunks
  // from expect(), otherwise the last step's (before the first: all); if the next step wants other chunks, it reads
  // again.
  void prefetch(Queues& queues);
  // Announces that the next step wants these chunks (empty: all). Drops reads ahead of others.
  void expect(Queues& queues, const std::vector<bool>& wanted);
  // Makes the ring larger or smaller than the plan's, until the next set_slots() or forget(). A larger ring keeps
  // chunks that have been read ahead, and prefetch() fills it; a smaller one reads them again. Slots removed from the
  // ring may still be read into and written from.
  void set_slots(Queues& queues, size_t slots);
  size_t slots() const { return free_.size(); }
  // The number of additional slots that prefetch() could use.
  size_t slots_wanted() const { return streaming_.size() - std::min(streaming_.size(), free_.size()); }
  // Drops reads ahead, and set_slots(), so that the slots can be used otherwise. The queues must have finished.
  void forget();
  bool has_prefetched() const { return prefetched_ > 0; }

 private:
  void start_over(Queues& queues);
  void queue_step(Queues& queues);
  void load(Queues& queues, size_t k);

  TierPlan plan_;
  TransferMode transfer_;
  std::vector<int> in_place_;              // the chunks that are stepped in place, in the order of the step
  std::vector<int> streamed_;              // the others
  std::vector<int> streaming_;             // the part of streamed_ wanted by the step, or by the next one
  std::vector<int> staying_;               // the part of in_place_ wanted
  std::vector<Queues::Event> free_;        // by slot: its last write (hybrid: step)
  std::vector<Queues::Event> loaded_;      // by slot: a read for which no step has waited
  Queues::Event written_ = Queues::kNone;  // the last of free_
  size_t prefetched_ = 0;                  // number of chunks, from the first of streaming_, that are in their slots
};

}  // namespace lowtide
