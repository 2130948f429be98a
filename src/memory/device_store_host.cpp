// The host's part between steps: it waits, reads and changes.
#include <utility>

#include "core/error.h"
#include "memory/device_store.h"

namespace lowtide {

void DeviceStore::synchronize() {
  queues_.finish();
  host_writes_.all_happened();
  returning_.clear();
}

// The host goes on after all that is queued.
void DeviceStore::catch_up() {
  stage_.write_back();
  if (queued_ == Queued::kNothing) return;
  queues_.finish();  // if it throws, all is as it was: it has to be waited for again
  queued_ = Queued::kNothing;
  pager_.forget();  // what was read ahead is out of date when the host has changed it
  host_writes_.all_happened();
  returning_.clear();
}

// Whatever is queued next finds the host's changes, and nothing of a step that failed.
void DeviceStore::before_queueing() {
  if (queued_ == Queued::kBrokenStep) catch_up();
  stage_.write_back();
  forget_stage();
}

// After a failure: waits for what is queued, now or, if that fails too, before anything else is.
void DeviceStore::break_off() noexcept {
  queued_ = Queued::kBrokenStep;
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

void DeviceStore::note_what_happened() {
  if (queued_ != Queued::kBrokenStep) host_writes_.ask(device_);
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

std::byte* DeviceStore::bring(size_t chunk) {
  if (device_.is_lost()) return bring_from_lost(chunk);
  onload();
  if (!stage_.holds(chunk)) catch_up();
  const DeviceRecord& record = chunks_[chunk];
  if (record.kind != MemoryKind::kDevice) return record.memory.data();
  return stage_.bring(chunk, env_, stage_memory_, record.chunk.bytes);
}

std::byte* DeviceStore::bring_from_lost(size_t chunk) {
  const DeviceRecord& record = chunks_[chunk];
  const auto param = ll(record.chunk.pieces.front().param);
  if (record.kind != MemoryKind::kPinned)
    fail(ErrorKind::kDeviceLost, "the device is lost, and with it the state of parameter %lld, which was in its memory",
         param);
  if (host_writes_.may_change(chunk))
    fail(ErrorKind::kDeviceLost,
         "the device is lost, and a step may have been changing the state of parameter %lld, which is in host memory, "
         "when that happened",
         param);
  return record.memory.data();
}

void DeviceStore::forget_stage() {
  stage_.forget();
  stage_memory_ = Buffer();
}

}  // namespace lowtide
