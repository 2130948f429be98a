// The pager's queues on a device: chunks in host memory or on disk, slots and resident chunks in device memory. Reads
// and writes have two separate device queues; steps use the caller's. Only finish(), and transfers through a DiskRing,
// wait.
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
  // All borrowed for the object's life.
  DeviceQueues(Device& device, std::vector<DeviceRecord>& chunks, std::vector<DeviceBytes>& slots, DiskRing& ring)
      : device_(device),
        chunks_(chunks),
        slots_(slots),
        ring_(ring),
        queues_{device.make_queue(), nullptr, device.make_queue()} {}
  // The owner has called finish().
  ~DeviceQueues() override = default;

  // Before each step, which `work` outlives, on the caller's queue: the step runs after all of the previous step. If
  // this throws, nothing has changed. hybrid: steps write to the chunk's record; otherwise stepped slots keep the
  // result until they are written. changes: false if the work changes no chunks, so that they are not written.
  void begin_step(void* queue, bool hybrid, bool changes, const ChunkWork& work);
  // After it.
  void end_step();
  // Tells it that the caller will queue work on chunks there until the next step begins.
  void follow(void* queue);

  void read(int chunk, int slot) override;
  void step(int chunk, int slot) override;
  void write(int chunk, int slot) override;
  Event record(Queue queue) override;
  // Throws kInternal if the event is older than the step before this one.
  void wait(Queue queue, Event event) override;
  // After a failure and end_step(): writes every slot that was stepped and is not yet being written back.
  void write_stepped();

  // Waits, on the host, for all queued work, even if waiting for some of it throws.
  void finish();
  void* transfer_queue() const { return queue_of(Queue::kIn); }
  // Events for all work queued so far.
  std::vector<Device::Event> record_all() const;
  // The queues whose work uses slots last.
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
  void* queues_[3];  // by Queue
  const ChunkWork* work_ = nullptr;
  // Chunks that are stepped in place collect here, so that one call of the work steps several: until a chunk in a slot
  // follows, or a migrating one, or an event of the steps, or the end.
  std::vector<PlacedChunk> waiting_;
  int64_t waiting_in_host_bytes_ = 0;  // their bytes in host memory, which the step accesses over the link
  bool hybrid_ = false, changes_ = true, following_ = false;
  Device::Event stepped_;
  int unwritten_ = -1, unwritten_slot_ = -1;  // the chunk that was stepped in this slot, until it is written
  std::deque<Device::Event> events_;          // this step's events, and the previous step's
  Event first_ = 0;                           // the index of events_[0]
  Event begun_ = 0;                           // the index of this step's first event
  int64_t read_bytes_ = 0, written_bytes_ = 0;
};

}  // namespace lowtide
