// The chunks of a device's state that are on disk.
#include <cstring>
#include <utility>

#include "core/error.h"
#include "memory/device_store.h"

namespace lowtide {

// Counts only the chunks that there are.
FilePlaces DeviceStore::places_for(const std::vector<Tier>& tiers) const {
  std::vector<int64_t> bytes;
  std::vector<bool> to_disk;
  for (size_t i = 0; i < chunks_.size(); ++i) {
    bytes.push_back(chunks_[i].chunk.bytes);
    to_disk.push_back(tiers[i] == Tier::kDisk);
  }
  return places_of(chunks_, bytes, to_disk);
}

FilePlaces DeviceStore::make_places(const StorePlan& planned) {
  std::vector<bool> to_disk;
  for (size_t i = 0; i < planned.chunk_bytes.size(); ++i) to_disk.push_back(planned.tier(i) == Tier::kDisk);
  FilePlaces places = places_of(chunks_, planned.chunk_bytes, to_disk);
  make_places(places);
  return places;
}

// A place says nothing of where the chunk is.
void DeviceStore::make_places(const FilePlaces& places) {
  if (places.bytes == 0) return;
  places.check(options_.budget.disk);
  places.fit(file_, env_, options_.disk);
  for (size_t i = 0; i < chunks_.size(); ++i) chunks_[i].file_offset = places.offsets[i];
}

// Where chunks are on disk there is at least one slot.
void DeviceStore::fit_ring(int slots) noexcept {
  int64_t largest = 0;
  for (const DeviceRecord& record : chunks_)
    if (record.tier() == Tier::kDisk) largest = std::max(largest, record.chunk.bytes);
  ring_.resize(file_.get(), largest > 0 ? std::max(slots, 1) : 0, largest);
}

// Chunks that could not be written are due whatever is wanted.
std::vector<bool> DeviceStore::due_chunks(const std::vector<int64_t>& wanted) const {
  std::vector<bool> chunks = chunks_of(wanted, chunks_.size());
  for (size_t i = 0; i < chunks.size(); ++i)
    if (chunks_[i].kept_data()) chunks[i] = true;
  return chunks;
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
    if (!unwritten_) unwritten_ = std::current_exception();
    record.kept_change = std::exchange(stage_memory_, Buffer());
    stage_.forget();
  }
}

void DeviceStore::check_written() {
  stage_.write_back();
  raise_kept(std::exchange(unwritten_, nullptr), "change", kept_bytes());
}

int64_t DeviceStore::kept_bytes() const {
  int64_t bytes = 0;
  for (const DeviceRecord& record : chunks_)
    if (record.kept_data()) bytes += record.chunk.bytes;
  return bytes;
}

}  // namespace lowtide
