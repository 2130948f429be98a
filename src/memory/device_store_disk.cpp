// The chunks of a device's state that are on disk.
#include <cstring>
#include <utility>

#include "core/error.h"
#include "memory/device_store.h"

namespace lowtide {

// Counts only the chunks that there are.
FilePlaces DeviceStore::places_for(const std::vector<Tier>& tiers) const {
  std::vector<int64_t> bytes;
  for (const DeviceRecord& record : chunks_) bytes.push_back(record.chunk.bytes);
  return places_of(chunks_, bytes, tiers);
}

// A place says nothing of where the chunk is.
void DeviceStore::make_places(const FilePlaces& places) {
  if (places.bytes == 0) return;
  places.check(options_.memory.disk_limit);
  places.fit(file_, env_, options_.memory.disk);
  for (size_t i = 0; i < chunks_.size(); ++i) chunks_[i].file_offset = places.offsets[i];
}

// Where chunks are on disk there is at least one slot.
void DeviceStore::fit_ring(int slots) noexcept {
  int64_t largest = 0;
  for (const DeviceRecord& record : chunks_)
    if (record.tier() == Tier::kDisk) largest = std::max(largest, record.chunk.bytes);
  ring_.resize(file_.get(), largest > 0 ? std::max(slots, 1) : 0, largest);
}

void DeviceStore::begin_ring(const std::vector<bool>& wanted, int threads) {
  if (ring_.slots() == 0) return;
  ring_.take_failure();  // of a step that was broken off: what is kept is part of this one
  std::vector<int> on_disk;
  for (const int chunk : pager_.plan().streamed)
    if (const auto i = static_cast<size_t>(chunk); chunks_[i].tier() == Tier::kDisk && (wanted.empty() || wanted[i]))
      on_disk.push_back(chunk);
  ring_.begin_step(std::move(on_disk), threads);
}

// At once, to memory of the host, wherever the chunk is.
void DeviceStore::read_record(size_t chunk, std::byte* to) {
  const DeviceRecord& record = chunks_[chunk];
  if (record.tier() != Tier::kDisk) return copy_now(to, record.memory.data(), record.chunk.bytes);
  if (const std::byte* const kept = record.kept_data())
    return void(std::memcpy(to, kept, static_cast<size_t>(record.chunk.bytes)));
  record.read(*file_, chunk, to);
}

// Takes what the host has changed. If it cannot be written, it stays in host memory; see check_written().
void DeviceStore::write_record(size_t chunk, const std::byte* from) {
  DeviceRecord& record = chunks_[chunk];
  if (record.tier() != Tier::kDisk) return copy_now(record.memory.data(), from, record.chunk.bytes);
  try {
    record.write(*file_, chunk, from);
  } catch (...) {
    note_unwritten();
    record.kept_change = std::exchange(stage_memory_, Buffer());
    stage_.forget();
  }
}

}  // namespace lowtide
