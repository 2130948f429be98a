#include "memory/device_lanes.h"

#include <exception>
#include <utility>

#include "core/error.h"

namespace lowtide {

void DeviceLanes::begin_step(void* queue, bool hybrid, bool changes, Work work) {
  if (following_) end_step();
  following_ = false;
  device_.wait(queue, stepped_);
  hybrid_ = hybrid;
  changes_ = changes;
  for (; first_ < begun_; ++first_) events_.pop_front();
  begun_ = first_ + static_cast<Event>(events_.size());
  queues_[static_cast<int>(Lane::kStep)] = queue;
  work_ = std::move(work);
  waiting_.clear();
  unwritten_ = -1;
}

void DeviceLanes::end_step() {
  step_waiting();
  stepped_ = device_.record(queues_[1]);
}

void DeviceLanes::step_waiting() {
  if (waiting_.empty()) return;
  const std::vector<Target> targets = std::exchange(waiting_, {});
  work_(targets);
}

void DeviceLanes::read(int chunk, int slot) {
  const DeviceRecord& record = chunks_[static_cast<size_t>(chunk)];
  device_.copy(queue_of(Lane::kIn), slots_[static_cast<size_t>(slot)].data(), record.memory.data(), record.chunk.bytes);
  read_bytes_ += record.chunk.bytes;
}

void DeviceLanes::follow(void* queue) {
  device_.wait(queue, stepped_);
  queues_[static_cast<int>(Lane::kStep)] = queue;
  following_ = true;
}

void DeviceLanes::step(int chunk, int slot) {
  const DeviceRecord& record = chunks_[static_cast<size_t>(chunk)];
  if (slot < 0) {
    waiting_.push_back({chunk, record.memory.data(), 0});
    return;
  }
  step_waiting();
  std::byte* const at = slots_[static_cast<size_t>(slot)].data();
  const Target target{chunk, at, hybrid_ ? record.memory.data() - at : 0};
  work_({&target, 1});
  if (!changes_) return;
  if (hybrid_)
    written_bytes_ += record.chunk.bytes;
  else
    unwritten_ = chunk, unwritten_slot_ = slot;
}

void DeviceLanes::write(int chunk, int slot) {
  if (!changes_) return;
  const DeviceRecord& record = chunks_[static_cast<size_t>(chunk)];
  device_.copy(queue_of(Lane::kOut), record.memory.data(), slots_[static_cast<size_t>(slot)].data(),
               record.chunk.bytes);
  written_bytes_ += record.chunk.bytes;
  unwritten_ = -1;
}

void DeviceLanes::write_stepped() {
  if (unwritten_ < 0) return;
  device_.wait(queue_of(Lane::kOut), stepped_);
  write(unwritten_, unwritten_slot_);
}

Lanes::Event DeviceLanes::record(Lane lane) {
  if (lane == Lane::kStep) step_waiting();
  events_.push_back(device_.record(queue_of(lane)));
  return first_ + static_cast<Event>(events_.size()) - 1;
}

void DeviceLanes::wait(Lane lane, Event event) {
  if (event == kNone) return;
  if (lane == Lane::kStep) step_waiting();
  if (event < first_) fail(ErrorKind::kInternal, "waited for an event of two steps ago");
  device_.wait(queue_of(lane), events_[static_cast<size_t>(event - first_)]);
}

std::vector<Device::Event> DeviceLanes::record_all() const {
  std::vector<Device::Event> events;
  for (void* const queue : queues_) events.push_back(device_.record(queue));
  return events;
}

// A slot that has been stepped has been written when the last write of all has happened.
std::vector<Device::Event> DeviceLanes::record_slots() const {
  return {device_.record(queue_of(Lane::kIn)), device_.record(queue_of(hybrid_ ? Lane::kStep : Lane::kOut))};
}

void DeviceLanes::finish() {
  std::exception_ptr first;
  const auto each = [&](auto&& event) {
    try {
      device_.host_wait(event());
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  };
  each([&] { return device_.record(queue_of(Lane::kIn)); });
  each([&] { return device_.record(queue_of(Lane::kOut)); });
  each([&] { return following_ ? device_.record(queue_of(Lane::kStep)) : stepped_; });
  if (first) std::rethrow_exception(first);
}

}  // namespace lowtide
