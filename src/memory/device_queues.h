// The pager's queues on a device: chunks in host memory, slots and resident chunks in device memory. Reads and writes
// are queued on two device queues of their own, steps on the caller's; only finish() waits.
#pragma once

#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "backend/device.h"
#include "memory/chunk.h"
#include "memory/pager.h"

namespace lowtide {

// A chunk as it is kept.
struct DeviceRecord {
  Chunk chunk;
  DeviceBytes memory;  // device memory where the chunk is resident, shared where it is managed, else pinned
};

class DeviceQueues final : public Queues {
 public:
  // write_offset: bytes from where the chunk is read to where it is written.
  struct Target {
    int chunk;
    std::byte* memory;
    int64_t write_offset;
  };
  using Work = std::function<void(std::span<const Target> targets)>;
  // All borrowed for the object's life.
  DeviceQueues(Device& device, std::vector<DeviceRecord>& chunks, std::vector<DeviceBytes>& slots)
      : device_(device), chunks_(chunks), slots_(slots), queues_{device.make_queue(), nullptr, device.make_queue()} {}
  // The owner has called finish().
  ~DeviceQueues() override = default;

  // Before each step, on the caller's queue: what it does comes after all of the step before. If it throws, nothing has
  // changed. Not hybrid: steps in slots stay there until they are written. changes: of work that changes chunks; else
  // they are not written.
  void begin_step(void* queue, bool hybrid, bool changes, Work work);
  // After it.
  void end_step();
  // Chunks that are stepped where they are wait for those behind them, to be one call of the work: until one in a slot
  // follows, or the end of the step, or this.
  void step_waiting();
  // What will be queued on this queue until the next step touches chunks, too.
  void follow(void* queue);

  void read(int chunk, int slot) override;
  void step(int chunk, int slot) override;
  void write(int chunk, int slot) override;
  Event record(Queue queue) override;
  // After a failure and end_step(): writes what has been stepped in a slot and is not on its way back.
  void write_stepped();
  // Throws kInternal if the event is older than the step before this one.
  void wait(Queue queue, Event event) override;

  // Waits, on the host, for all that is queued: also for what is left when waiting for some of it throws.
  void finish();
  void* transfer_queue() const { return queues_[0]; }
  // All that is queued on the queues so far, and all of it that uses slots.
  std::vector<Device::Event> record_all() const;
  std::vector<Device::Event> record_slots() const;
  // Of chunks that are stepped in host memory.
  void count_moved(int64_t read, int64_t written) { read_bytes_ += read, written_bytes_ += written; }
  int64_t read_bytes() const { return read_bytes_; }
  int64_t written_bytes() const { return written_bytes_; }

 private:
  void* queue_of(Queue queue) const { return queues_[static_cast<int>(queue)]; }

  Device& device_;
  std::vector<DeviceRecord>& chunks_;
  std::vector<DeviceBytes>& slots_;
  void* queues_[3];  // of each Queue
  Work work_;
  std::vector<Target> waiting_;
  bool hybrid_ = false, changes_ = true, following_ = false;
  Device::Event stepped_;
  int unwritten_ = -1, unwritten_slot_ = -1;  // the chunk that was stepped in this slot, until it is written
  std::deque<Device::Event> events_;          // of this step and the one before
  Event first_ = 0;                           // the number of events_[0]
  Event begun_ = 0;                           // of this step's first
  int64_t read_bytes_ = 0, written_bytes_ = 0;
};

}  // namespace lowtide
