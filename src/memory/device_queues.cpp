#include "memory/device_queues.h"

#include <exception>
#include <utility>

#include "core/error.h"

namespace lowtide {

void DeviceQueues::begin_step(void* queue, bool hybrid, bool changes, const ChunkWork& work) {
  if (following_) end_step();
  following_ = false;
  device_.wait(queue, stepped_);
  hybrid_ = hybrid;
  changes_ = changes;
  for (; first_ < begun_; ++first_) events_.pop_front();
  begun_ = first_ + static_cast<Event>(events_.size());
  queues_[static_cast<int>(Queue::kStep)] = queue;
  work_ = &work;
  unwritten_ = -1;
}

void DeviceQueues::end_step() {
  step_waiting();
  stepped_ = device_.record(queue_of(Queue::kStep));
}

void DeviceQueues::step_waiting() {
  if (waiting_.empty()) return;
  // Forget the chunks before stepping them, so that they are not stepped again if the work throws.
  const std::vector<PlacedChunk> chunks = std::exchange(waiting_, {});
  const int64_t in_host = std::exchange(waiting_in_host_bytes_, 0);
  (*work_)(chunks);
  read_bytes_ += in_host;
  if (changes_) written_bytes_ += in_host;
}

void DeviceQueues::read(int chunk, int slot) {
  const DeviceRecord& record = chunks_[static_cast<size_t>(chunk)];
  const bool on_disk = record.tier() == Tier::kDisk;
  const std::byte* const from = on_disk ? ring_.bring(chunk) : record.memory.data();
  device_.copy(queue_of(Queue::kIn), slots_[static_cast<size_t>(slot)].data(), from, record.chunk.bytes);
  if (on_disk) ring_.leaves(device_.record(queue_of(Queue::kIn)));
  read_bytes_ += record.chunk.bytes;
}

void DeviceQueues::follow(void* queue) {
  device_.wait(queue, stepped_);
  queues_[static_cast<int>(Queue::kStep)] = queue;
  following_ = true;
}

void DeviceQueues::step(int chunk, int slot) {
  const DeviceRecord& record = chunks_[static_cast<size_t>(chunk)];
  if (slot < 0) {
    if (record.kind == MemoryKind::kShared) {  // migrates while the previous chunk is stepped
      device_.prefetch(transfer_queue(), record.memory.data(), record.chunk.bytes);
      step_waiting();
    }
    waiting_.push_back({record.chunk.pieces, record.memory.data()});
    if (record.kind == MemoryKind::kPinned) waiting_in_host_bytes_ += record.chunk.bytes;
    return;
  }
  step_waiting();
  std::byte* const at = slots_[static_cast<size_t>(slot)].data();
  const PlacedChunk placed{record.chunk.pieces, at, hybrid_ ? record.memory.data() - at : 0};
  (*work_)({&placed, 1});
  if (!changes_) return;
  if (hybrid_)
    written_bytes_ += record.chunk.bytes;
  else
    unwritten_ = chunk, unwritten_slot_ = slot;
}

void DeviceQueues::write(int chunk, int slot) {
  if (!changes_) return;
  const DeviceRecord& record = chunks_[static_cast<size_t>(chunk)];
  const bool on_disk = record.tier() == Tier::kDisk;
  std::byte* const to = on_disk ? ring_.room_for() : record.memory.data();
  device_.copy(queue_of(Queue::kOut), to, slots_[static_cast<size_t>(slot)].data(), record.chunk.bytes);
  if (on_disk) ring_.arrives(chunk, device_.record(queue_of(Queue::kOut)));
  written_bytes_ += record.chunk.bytes;
  unwritten_ = -1;
}

void DeviceQueues::write_stepped() {
  if (unwritten_ < 0) return;
  device_.wait(queue_of(Queue::kOut), stepped_);
  write(unwritten_, unwritten_slot_);
}

Queues::Event DeviceQueues::record(Queue queue) {
  if (queue == Queue::kStep) step_waiting();
  events_.push_back(device_.record(queue_of(queue)));
  return first_ + static_cast<Event>(events_.size()) - 1;
}

void DeviceQueues::wait(Queue queue, Event event) {
  if (event == kNone) return;
  if (queue == Queue::kStep) step_waiting();
  if (event < first_) fail(ErrorKind::kInternal, "waited for an event of two steps ago");
  device_.wait(queue_of(queue), events_[static_cast<size_t>(event - first_)]);
}

std::vector<Device::Event> DeviceQueues::record_all() const {
  std::vector<Device::Event> events;
  for (void* const queue : queues_) events.push_back(device_.record(queue));
  return events;
}

// All stepped slots have been written when the last write is done.
std::array<void*, 2> DeviceQueues::slot_queues() const {
  return {queue_of(Queue::kIn), queue_of(hybrid_ ? Queue::kStep : Queue::kOut)};
}

void DeviceQueues::finish() {
  std::exception_ptr first;
  const auto each = [&](auto&& event) {
    try {
      device_.host_wait(event());
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  };
  each([&] { return device_.record(queue_of(Queue::kIn)); });
  each([&] { return device_.record(queue_of(Queue::kOut)); });
  each([&] { return following_ ? device_.record(queue_of(Queue::kStep)) : stepped_; });
  if (first) std::rethrow_exception(first);
}

}  // namespace lowtide
