// Streams chunks through a ring of slots: read k+1 | step k | write k-1, on three queues that run side by side. With
// hybrid transfer a step writes to the chunk's record by itself; with zero-copy transfer it reads there, too, and there
// are no slots. The pager knows nothing of devices or disks: implementations of Queues do. Every order that matters is
// an explicit wait.
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

// Work is queued in order on each queue and may run late. An implementation may also do it at once, and may throw from
// any call; the pager then stops queueing.
class Queues {
 public:
  using Event = int64_t;
  static constexpr Event kNone = -1;  // has happened

  virtual ~Queues() = default;
  virtual void read(int chunk, int slot) = 0;  // on kIn: the chunk's record into the slot
  // On kStep: in the slot's memory (hybrid: from there to the chunk's record); slot -1: where the chunk is.
  virtual void step(int chunk, int slot) = 0;
  virtual void write(int chunk, int slot) = 0;  // on kOut: the slot back to the chunk's record
  // All that is queued on the queue so far. Events stay valid until the end of the next step.
  virtual Event record(Queue queue) = 0;
  // Work queued on the queue from here on runs after the event.
  virtual void wait(Queue queue, Event event) = 0;
};

class Pager {
 public:
  // Throws kInvalidArgument if the plan has streamed chunks and no slot for them, or does not say of each chunk either
  // that it is resident or that it is streamed.
  explicit Pager(TierPlan plan, TransferMode transfer = TransferMode::kCopy);
  const TierPlan& plan() const { return plan_; }

  // Queues the work of one step: every chunk that is wanted (empty: all of them) once, in order within each set;
  // resident chunks spread evenly among the streamed ones, so that transfers go on beneath them. Slots are free again
  // when their write has happened, which the next step waits for.
  //
  // An exception of a queue passes through. The work queued until then stands: chunks whose write, or resident step,
  // was queued get the new state once the queues have run; the others keep the old one, whole. No event may stand for
  // work that still uses a slot, so the queues must have finished (or dropped) all of it before the next step, of this
  // pager or of another on the same slots.
  void step(Queues& queues, const std::vector<bool>& wanted = {});

  // Queues the reads that the next step begins with, so that they run while the caller does something else. Taken to be
  // those that expect() says, else of the last step (before the first: of all chunks); if the next one wants other
  // chunks, it reads again.
  void prefetch(Queues& queues);
  // The next step will want these chunks (empty: all). What has been read ahead of others is forgotten.
  void expect(Queues& queues, const std::vector<bool>& wanted);
  // Makes the ring larger or smaller than the plan's, until the next set_slots() or forget(). A larger ring keeps the
  // chunks that have been read ahead, and prefetch() fills it up; a smaller one reads them again. Slots that the ring
  // has lost may still be read into and written from.
  void set_slots(Queues& queues, size_t slots);
  size_t slots() const { return free_.size(); }
  // How many more slots prefetch() could use.
  size_t slots_wanted() const { return streaming_.size() - std::min(streaming_.size(), free_.size()); }
  // Forgets what has been read ahead, and set_slots(), so that the slots can be used for something else. The queues
  // must have finished.
  void forget();
  bool has_prefetched() const { return prefetched_ > 0; }

 private:
  void start_over(Queues& queues);
  void queue_step(Queues& queues);
  void load(Queues& queues, size_t k);

  TierPlan plan_;
  TransferMode transfer_;
  std::vector<int> in_place_;              // the chunks that are stepped where they are, in the order of the step
  std::vector<int> streamed_;              // the others
  std::vector<int> streaming_;             // those of streamed_ that the step wants, or the next one will
  std::vector<int> staying_;               // those of in_place_
  std::vector<Queues::Event> free_;        // by slot: its last write (hybrid: step)
  std::vector<Queues::Event> loaded_;      // by slot: a read that no step has waited for
  Queues::Event written_ = Queues::kNone;  // the last of free_
  size_t prefetched_ = 0;                  // the first chunks of streaming_, which are in their slots
};

}  // namespace lowtide
