// Streams chunks through a ring of slots on three concurrent queues: read k+1 | step k | write k-1. With hybrid
// transfer, the step writes to the chunk's record; with zero-copy transfer, it also reads the record, and there are no
// slots. The pager does not depend on devices or disks; implementations of Queues do. Every required order is an
// explicit wait.
//
// A pager owns only its plan and its events. Used by one thread at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/transfer_mode.h"
#include "memory/plan.h"

namespace lowtide {

enum class Queue : int { kIn, kStep, kOut };

// Work runs in order on each queue, possibly late. An implementation may also execute work at once, and may throw from
// any call; the pager then stops queueing.
class Queues {
 public:
  using Event = int64_t;
  static constexpr Event kNone = -1;  // an event that is over

  virtual ~Queues() = default;
  virtual void read(int chunk, int slot) = 0;  // on kIn: reads the chunk's record into the slot
  // On kStep: steps the chunk in the slot's memory (hybrid: from there to the chunk's record), or in place for slot -1.
  virtual void step(int chunk, int slot) = 0;
  virtual void write(int chunk, int slot) = 0;  // on kOut: writes the slot to the chunk's record
  // Marks all work queued so far on the queue. Events stay valid until the end of the next step.
  virtual Event record(Queue queue) = 0;
  // Makes work that is queued on the queue from now on run after the event.
  virtual void wait(Queue queue, Event event) = 0;
};

class Pager {
 public:
  // Throws kInvalidArgument if the plan has streamed chunks but no slot for them, or if a chunk is not exactly one of
  // resident and streamed.
  explicit Pager(TierPlan plan, TransferMode transfer = TransferMode::kCopy);
  const TierPlan& plan() const { return plan_; }

  // Queues one step of every wanted chunk (all if `wanted` is empty). Resident and streamed chunks each keep their
  // order; resident chunks are spread evenly among the streamed ones, so that their steps overlap with transfers. Slots
  // are free when they have been written; the next step waits for that.
  //
  // An exception from a queue passes through. Work queued before the exception remains queued: chunks whose write or
  // resident step was queued get the new state when the queues have run, and the other chunks keep the whole old state.
  // Events may then not cover all work that uses a slot, so the queues must finish (or drop) all work before the next
  // step of this pager or of another pager on the same slots.
  void step(Queues& queues, const std::vector<bool>& wanted = {});

  // Queues the first reads of the next step, so that they run while the caller does something else. It reads the chunks
  // given to expect(), or else the chunks of the last step (all chunks before the first step). If the next step wants
  // other chunks, that step reads again.
  void prefetch(Queues& queues);
  // Announces that the next step wants these chunks (all if empty). Drops other chunks that were read ahead.
  void expect(Queues& queues, const std::vector<bool>& wanted);
  // Changes the number of slots until the next set_slots() or forget(). A larger ring keeps chunks that have been read
  // ahead, and prefetch() fills the new slots; a smaller ring reads the chunks again. Queued reads and writes may still
  // use slots that were removed from the ring.
  void set_slots(Queues& queues, size_t slots);
  size_t slots() const { return free_.size(); }
  // Returns the number of additional slots that prefetch() could use.
  size_t slots_wanted() const { return streaming_.size() - std::min(streaming_.size(), free_.size()); }
  // Drops chunks that were read ahead and undoes set_slots(), so that the slots become free. The queues must have
  // finished.
  void forget();
  bool has_prefetched() const { return prefetched_ > 0; }

 private:
  void start_over(Queues& queues);
  void queue_step(Queues& queues);
  void load(Queues& queues, size_t k);

  TierPlan plan_;
  TransferMode transfer_;
  std::vector<int> in_place_;              // the chunks that are stepped in place, in step order
  std::vector<int> streamed_;              // the streamed chunks, in step order
  std::vector<int> streaming_;             // the chunks of streamed_ that this or the next step wants
  std::vector<int> staying_;               // the chunks of in_place_ that are wanted
  std::vector<Queues::Event> free_;        // by slot: the last write (hybrid: the last step)
  std::vector<Queues::Event> loaded_;      // by slot: a read for which no step has waited
  Queues::Event written_ = Queues::kNone;  // the last event of free_
  size_t prefetched_ = 0;                  // how many chunks at the front of streaming_ have been read ahead
};

}  // namespace lowtide
