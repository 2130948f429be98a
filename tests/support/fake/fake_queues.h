// The pager's queues on the fake device: chunk records in far memory, slots and resident chunks in near memory. A step
// mixes every byte with all earlier bytes, so a chunk that is read, stepped or written too early or twice shows.
#pragma once

#include "support/fake/fake_device.h"
#include "memory/pager.h"
#include "support/test.h"

namespace lowtide::fake {

struct FakeQueuesOptions {
  uint64_t seed = 0;
  double read_rate = 0, step_rate = 0, write_rate = 0;  // bytes per second of the virtual clock; 0: no time
  // Makes the calling thread drive the queues: transfers run by themselves, step() returns when the step is over, and a
  // wait on any queue blocks the caller.
  bool blocking = false;
  TransferMode transfer = TransferMode::kCopy;
  int more_slots = 0;  // in addition to the plan's, for rings that grow
};

class FakeQueues : public Queues {
 public:
  // Throws kOutOfMemory if slots and resident chunks exceed the near memory.
  FakeQueues(const TierPlan& plan, std::vector<int64_t> chunk_bytes, const FakeQueuesOptions& options);

  // Call this before each Pager::step. `number` goes into the bytes.
  void begin_step(int64_t number);
  void drain() { device_.synchronize(); }
  std::vector<uint8_t> contents(int chunk);  // the chunk's current bytes; call drain() first

  static std::vector<uint8_t> initial(int chunk, int64_t bytes);
  static void mix(uint8_t* bytes, int64_t n, int chunk, int64_t number);

  void read(int chunk, int slot) override;
  void step(int chunk, int slot) override;
  void write(int chunk, int slot) override;
  Event record(Queue queue) override;
  void wait(Queue queue, Event event) override;  // throws kInternal if the event is older than the last step

  FakeDevice& device() { return device_; }
  int64_t near_peak() const { return device_.peak(near_); }

 private:
  Span slot_span(int chunk, int slot) const;
  int64_t bytes(int chunk) const { return chunk_bytes_.at(static_cast<size_t>(chunk)); }

  std::vector<int64_t> chunk_bytes_;
  FakeQueuesOptions options_;
  FakeDevice device_;
  int near_ = -1, far_ = -1, step_over_ = -1;
  std::vector<Span> home_;  // for each chunk: its record, or its resident place
  std::vector<int> slots_;  // regions
  int64_t number_ = 0;

  // An Event counts the records of all steps. Device events are recycled after the two steps in which they are valid,
  // so a pager that kept one longer would wait for something else.
  std::vector<int> pools_[2];           // device events of even and odd steps
  int64_t step_index_ = 0;              // number of begin_step calls
  Event first_[2] = {0, 0}, next_ = 0;  // first events of the pools' steps; the next record's event
};

}  // namespace lowtide::fake
