// What the host reads and changes between steps, and waits for first.
#include <algorithm>
#include <utility>

#include "core/error.h"
#include "memory/device_store.h"

namespace lowtide {

void DeviceStore::synchronize() {
  queues_.finish();
  std::fill(writing_.begin(), writing_.end(), false);
  returning_.clear();
}

// Waits for what is queued: now or, if that fails too, before anything else is.
void DeviceStore::abandon_step() noexcept {
  unfinished_ = true;
  try {
    queues_.end_step();
    queues_.write_stepped();  // the caller counts it as done
  } catch (...) {
  }
  try {
    catch_up();
  } catch (...) {
  }
}

void DeviceStore::catch_up() {
  write_changed();
  if (!queued_) return;
  queues_.finish();  // if it throws, all is as it was: it has to be waited for again
  queued_ = unfinished_ = false;
  pager_.forget();  // what was read ahead is out of date when the host has changed it
  std::fill(writing_.begin(), writing_.end(), false);
  last_step_.clear();
  returning_.clear();
}

void DeviceStore::note_what_happened() {
  if (last_step_.empty() || unfinished_) return;
  for (const Device::Event& event : last_step_)
    if (!device_.has_happened(event)) return;
  last_step_.clear();
  std::fill(writing_.begin(), writing_.end(), false);
}

void DeviceStore::copy_now(void* to, const void* from, int64_t bytes) {
  try {
    if (options_.shared_allocator) device_.wait(queues_.transfer_queue(), device_.record(queue_));
    device_.copy(queues_.transfer_queue(), to, from, bytes);
    device_.host_wait(device_.record(queues_.transfer_queue()));
  } catch (...) {
    try {
      queues_.finish();  // the caller frees the memory
    } catch (...) {      // a device that is lost uses nothing
    }
    throw;
  }
}

// Between steps: the chunk's memory if that is of the host, or a copy of it.
std::byte* DeviceStore::bring(size_t chunk) {
  if (device_.is_lost()) return bring_from_lost(chunk);
  onload();
  DeviceRecord& record = chunks_[chunk];
  if (in_stage_ == static_cast<int64_t>(chunk)) return stage_.data();
  catch_up();
  if (options_.managed || !pager_.plan().resident[chunk]) return record.memory.data();
  in_stage_ = -1;
  if (static_cast<int64_t>(stage_.bytes()) < record.chunk.bytes)
    stage_ = Buffer(env_, static_cast<size_t>(record.chunk.bytes));
  copy_now(stage_.data(), record.memory.data(), record.chunk.bytes);
  in_stage_ = static_cast<int64_t>(chunk);
  return stage_.data();
}

// The host's memory outlives the device.
std::byte* DeviceStore::bring_from_lost(size_t chunk) {
  if (!offloaded_.empty() && offloaded_[chunk].data()) return offloaded_[chunk].data();
  const auto param = static_cast<long long>(chunks_[chunk].chunk.pieces.front().param);
  if (options_.managed || pager_.plan().resident[chunk])
    fail(ErrorKind::kDeviceLost, "the device is lost, and with it the state of parameter %lld, which was in its memory",
         param);
  if (writing_[chunk])
    fail(ErrorKind::kDeviceLost,
         "the device is lost, and a step may have been changing the state of parameter %lld, which is in host memory, "
         "when that happened",
         param);
  return chunks_[chunk].memory.data();
}

void DeviceStore::put_back(size_t chunk) {
  if (in_stage_ == static_cast<int64_t>(chunk)) stage_changed_ = true;
}

void DeviceStore::write_changed() {
  if (!stage_changed_) return;
  const DeviceRecord& record = chunks_[static_cast<size_t>(in_stage_)];
  copy_now(record.memory.data(), stage_.data(), record.chunk.bytes);
  stage_changed_ = false;
}

void DeviceStore::forget_staged() {
  in_stage_ = -1;
  stage_ = Buffer();
}

}  // namespace lowtide
