// The pager's queues on a device. Streamed chunks are in host memory or on disk; slots and resident chunks are in
// device memory. Reads and writes each have a device queue, and steps use the caller's queue. Only finish() and
// transfers through a DiskRing make the host wait.
#pragma once

#include <array>
#include <deque>
#include <vector>

#include "backend/device.h"
#include "memory/chunk.h"
#include "memory/disk_ring.h"
#include "memory/pager.h"

namespace lowtide {

class DeviceQueues final : public Queues {
 public:
  // Borrows all arguments for the object's lifetime.
  DeviceQueues(Device& device, std::vector<DeviceRecord>& chunks, std::vector<DeviceBytes>& slots, DiskRing& ring)
      : device_(device),
        chunks_(chunks),
        slots_(slots),
        ring_(ring),
        queues_{device.make_queue(), nullptr, device.make_queue()} {}
  // The owner must have called finish().
  ~DeviceQueues() override = default;

  // Call this before each step. The step uses the caller's queue and runs after the whole previous step; `work` must
  // outlive the step. With `hybrid`, steps write to the chunk's record; otherwise stepped slots keep the result until
  // they are written back. Without `changes`, the work changes no chunk, and none is written. If this throws, nothing
  // changed.
  void begin_step(void* queue, bool hybrid, bool changes, const ChunkWork& work);
  // Call this after each step.
  void end_step();
  // Notes that the caller will queue work on chunks on `queue` until the next step begins.
  void follow(void* queue);

  void read(int chunk, int slot) override;
  void step(int chunk, int slot) override;
  void write(int chunk, int slot) override;
  Event record(Queue queue) override;
  // Throws kInternal if the event is older than the previous step.
  void wait(Queue queue, Event event) override;
  // Writes every slot that was stepped and is not yet being written back. Call this after a failure and end_step().
  void write_stepped();

  // Makes the host wait for all queued work, even if waiting for some of the work throws.
  void finish();
  void* transfer_queue() const { return queue_of(Queue::kIn); }
  // Returns events that cover all work queued so far.
  std::vector<Device::Event> record_all() const;
  // Returns the queues whose work uses the slots last.
  std::array<void*, 2> slot_queues() const;
  int64_t read_bytes() const { return read_bytes_; }
  int64_t written_bytes() const { return written_bytes_; }

 private:
  void* queue_of(Queue queue) const { return queues_[static_cast<int>(queue)]; }
  void step_waiting();

  Device& device_;
  std::vector<DeviceRecord>& chunks_;
  std::vector<DeviceBytes>& slots_;
  DiskRing& ring_;
  void* queues_[3];  // indexed by Queue
  const ChunkWork* work_ = nullptr;
  // Collects chunks that are stepped in place, so that one call of the work steps several of them. The call comes
  // before a chunk in a slot, a migrating chunk or an event of the steps, and at the end.
  std::vector<PlacedChunk> waiting_;
  int64_t waiting_in_host_bytes_ = 0;  // the part in host memory, which the step accesses over the link
  bool hybrid_ = false, changes_ = true, following_ = false;
  Device::Event stepped_;
  int unwritten_ = -1, unwritten_slot_ = -1;  // a stepped chunk that is not yet being written, and its slot
  std::deque<Device::Event> events_;          // the events of this step and the previous one
  Event first_ = 0;                           // the index of events_[0]
  Event begun_ = 0;                           // the index of this step's first event
  int64_t read_bytes_ = 0, written_bytes_ = 0;
};

}  // namespace lowtide
