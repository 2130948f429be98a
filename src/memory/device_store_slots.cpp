// The ring's slots: the plan's, and those that prefetch borrows for one step.
#include <algorithm>
#include <utility>

#include "core/error.h"
#include "memory/device_store.h"

namespace lowtide {

// Takes the plan's slots, as many as there is memory for: state that is kept on the device makes room for them.
void DeviceStore::take_slots(void* stream) {
  const auto wanted = static_cast<size_t>(pager_.plan().slots);
  const int64_t bytes = pager_.plan().slot_bytes;
  slots_.reserve(wanted);
  bool taken = false;
  try {
    for (; slots_.size() < wanted; taken = true) slots_.emplace_back(device_, MemoryKind::kDevice, bytes);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kOutOfMemory) throw;
    if (demote_for_slots(bytes * static_cast<int64_t>(wanted - slots_.size()))) return take_slots(stream);
    if (slots_.empty()) throw;
  }
  if (taken) transfer_behind(stream);
  pager_.set_slots(queues_, slots_.size());
}

// Whether state has left the device.
bool DeviceStore::demote_for_slots(int64_t bytes) {
  const TierPlan& plan = pager_.plan();
  const int64_t before = plan.resident_bytes;
  if (before == 0) return false;
  residency_.disturbed();
  try {
    set_device_budget(std::max<int64_t>(plan.bytes - bytes, 0));
  } catch (const Error& error) {  // host memory is short, too
    if (error.kind() == ErrorKind::kDeviceLost) throw;
  }
  return pager_.plan().resident_bytes < before;
}

int64_t DeviceStore::prefetch(int64_t bytes, void* stream) {
  if (ring_.slots() > 0) return 0;  // reads of a file would be waited for
  if (chunks_.empty() || offloaded_ || queued_ == Queued::kBrokenStep || pager_.plan().slots == 0) return 0;
  free_returned();
  const int64_t each = pager_.plan().slot_bytes;
  const bool own = slots_.size() >= static_cast<size_t>(pager_.plan().slots);  // before the first step it has none
  if (own) pager_.set_slots(queues_, slots_.size());
  const size_t most =
      std::min(static_cast<size_t>(std::max<int64_t>(bytes, 0) / each), own ? pager_.slots_wanted() : 0);
  const size_t before = slots_.size();
  slots_.reserve(before + most);
  try {
    // Memory that the last step may still use: since the ring became smaller reads come after that.
    for (; slots_.size() < before + most && !returning_.empty(); returning_.pop_front())
      slots_.push_back(std::move(returning_.front().memory));
    try {
      while (slots_.size() < before + most) slots_.emplace_back(device_, MemoryKind::kDevice, each);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kOutOfMemory) throw;
    }
    if (slots_.size() == before) return 0;
    queued_ = Queued::kWork;
    transfer_behind(stream);
    pager_.set_slots(queues_, slots_.size());
    pager_.prefetch(queues_);
  } catch (...) {
    break_off();  // the next step gives the slots back
    throw;
  }
  return static_cast<int64_t>(slots_.size() - before) * each;
}

void DeviceStore::end_prefetch() {
  try {
    give_slots_back();
  } catch (...) {
    break_off();
    throw;
  }
}

void DeviceStore::give_slots_back() {
  free_returned();
  const auto own = static_cast<size_t>(pager_.plan().slots);
  if (slots_.size() <= own) return;
  pager_.set_slots(queues_, own);
  // At once: the forward pass that is queued next may need the memory. It must not wait for write-back.
  const std::array<void*, 2> queues = queues_.slot_queues();
  const auto is_noted = [&](void* memory) {
    return options_.note_use &&
           std::all_of(queues.begin(), queues.end(), [&](void* queue) { return options_.note_use(memory, queue); });
  };
  std::vector<Device::Event> used;
  for (; slots_.size() > own; slots_.pop_back()) {
    if (is_noted(slots_.back().data())) continue;
    if (used.empty())
      for (void* const queue : queues) used.push_back(device_.record(queue));
    returning_.push_back({used, std::move(slots_.back())});
  }
}

void DeviceStore::free_returned() {
  const auto happened = [&](const Device::Event& event) { return device_.has_happened(event); };
  while (!returning_.empty() && std::all_of(returning_.front().used.begin(), returning_.front().used.end(), happened))
    returning_.pop_front();
}

}  // namespace lowtide
