#include "memory/disk_ring.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace lowtide {

DiskRing::~DiskRing() {
  try {
    finish();
  } catch (...) {  // a lost device no longer uses the memory
  }
}

void DiskRing::resize(ScratchFile* file, int slots, int64_t slot_bytes) {
  if (slots == 0) slot_bytes = 0;
  if (slot_bytes != slot_bytes_) slots_.clear();
  file_ = file;
  slot_bytes_ = slot_bytes;
  slots_.resize(static_cast<size_t>(slots));
}

int64_t DiskRing::bytes() const {
  int64_t bytes = 0;
  for (const Slot& slot : slots_) bytes += slot.memory.bytes();
  return bytes;
}

void DiskRing::begin_step(std::vector<int> chunks, int threads) {
  if (!chunks.empty())
    for (Slot& slot : slots_)
      if (!slot.memory.data()) slot.memory = PinnedPages(device_, slot_bytes_);
  coming_ = std::move(chunks);
  begun_ = 0;
  threads_ = threads;
}

void DiskRing::begin(Slot& slot, Use use, int chunk) {
  slot.use = use;
  slot.chunk = chunk;
  slot.since = uses_++;
}

const std::byte* DiskRing::bring(int chunk) {
  const auto is_chunk = [&](const Slot& slot) { return slot.use == Use::kReading && slot.chunk == chunk; };
  auto found = std::find_if(slots_.begin(), slots_.end(), is_chunk);
  if (found == slots_.end()) {
    Slot& slot = free_slot();
    found = slots_.begin() + (&slot - slots_.data());
    if (begun_ < coming_.size() && coming_[begun_] == chunk) ++begun_;
    read(slot, chunk);
  }
  Slot& slot = *found;
  read_ahead();
  slot.use = Use::kNothing;  // in case the read fails
  const DeviceRecord& record = chunks_[static_cast<size_t>(chunk)];
  if (!slot.read) {
    {
      const Stopwatch waiting(traffic_.waited_seconds);
      file_->wait(slot.ticket);
    }
    traffic_.read_bytes += record.chunk.bytes;
    record.check(slot.memory.data(), static_cast<size_t>(chunk), threads_);
  }
  slot.use = Use::kTaken;
  return slot.memory.data();
}

void DiskRing::leaves(Device::Event copied) {
  const auto taken =
      std::find_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.use == Use::kTaken; });
  taken->copied = std::move(copied);
  begin(*taken, Use::kLeaving, taken->chunk);
}

std::byte* DiskRing::room_for() { return free_slot().memory.data(); }

void DiskRing::arrives(int chunk, Device::Event copied) {
  const auto free = std::find_if(slots_.begin(), slots_.end(),
                                 [](const Slot& slot) { return slot.use == Use::kNothing && slot.memory.data(); });
  free->copied = std::move(copied);
  begin(*free, Use::kArriving, chunk);
}

// Returns the first free slot with memory, and waits for one if necessary.
DiskRing::Slot& DiskRing::free_slot() {
  note_what_happened();
  while (true) {
    for (Slot& slot : slots_)
      if (slot.use == Use::kNothing && slot.memory.data()) return slot;
    if (Slot* const slot = oldest()) {
      end(*slot);
      continue;
    }
    // The other slots wait for a read, or their memory holds chunks that could not be written.
    const auto free = std::find_if(slots_.begin(), slots_.end(), [](const Slot& s) { return s.use == Use::kNothing; });
    if (free == slots_.end()) fail(ErrorKind::kInternal, "no slot for a chunk on its way to the disk");
    free->memory = PinnedPages(device_, slot_bytes_);
  }
}

// Returns the oldest slot that will become free without the caller's help, or nullptr.
DiskRing::Slot* DiskRing::oldest() {
  Slot* first = nullptr;
  for (Slot& slot : slots_)
    if (slot.use >= Use::kLeaving && (!first || slot.since < first->since)) first = &slot;
  return first;
}

// Starts writes as soon as possible.
void DiskRing::note_what_happened() {
  for (Slot& slot : slots_)
    if ((slot.use == Use::kLeaving || slot.use == Use::kArriving) && device_.has_happened(slot.copied)) {
      if (slot.use == Use::kArriving)
        write(slot);
      else
        slot.use = Use::kNothing;
    }
}

void DiskRing::read(Slot& slot, int chunk) {
  const DeviceRecord& record = chunks_[static_cast<size_t>(chunk)];
  slot.read = record.kept_data() != nullptr;  // the chunk could not be written; host memory has the only copy
  if (slot.read)
    std::memcpy(slot.memory.data(), record.kept_data(), static_cast<size_t>(record.chunk.bytes));
  else
    slot.ticket = file_->read(record.file_offset, slot.memory.data(), record.chunk.bytes);
  begin(slot, Use::kReading, chunk);
}

// Reads into all free slots but one, so that a chunk on its way back need not wait for a read to end.
void DiskRing::read_ahead() {
  const auto is_reading = [](const Slot& slot) { return slot.use == Use::kReading; };
  auto reading = static_cast<size_t>(std::count_if(slots_.begin(), slots_.end(), is_reading));
  for (Slot& slot : slots_) {
    if (begun_ == coming_.size() || reading + 1 >= slots_.size()) return;
    if (slot.use != Use::kNothing || !slot.memory.data()) continue;
    read(slot, coming_[begun_++]);
    ++reading;
  }
}

// Writes or keeps the slot's chunk, whatever fails, because the slot holds the only copy of the step's result.
void DiskRing::write(Slot& slot) noexcept {
  DeviceRecord& record = chunks_[static_cast<size_t>(slot.chunk)];
  const std::byte* const from = slot.memory.data();
  try {
    const uint64_t generation = record.generation + 1;
    const uint64_t checksum = record.checksum_of(from, static_cast<size_t>(slot.chunk), generation, threads_);
    slot.ticket = file_->write(record.file_offset, from, record.chunk.bytes);
    record.generation = generation;
    record.checksum = checksum;
    traffic_.written_bytes += record.chunk.bytes;
    slot.use = Use::kWriting;
  } catch (...) {
    keep(slot);
  }
}

// Returns once the slot is unused or being written.
void DiskRing::end(Slot& slot) {
  if (slot.use == Use::kLeaving || slot.use == Use::kArriving) {
    device_.host_wait(slot.copied);
    if (slot.use == Use::kArriving) return write(slot);
  }
  if (slot.use == Use::kReading || slot.use == Use::kWriting) {
    const bool writes = slot.use == Use::kWriting;
    slot.use = Use::kNothing;
    const Stopwatch waiting(traffic_.waited_seconds);
    try {
      if (writes || !slot.read) file_->wait(slot.ticket);
      if (writes) chunks_[static_cast<size_t>(slot.chunk)].forget_kept();  // obsolete
    } catch (...) {
      if (writes) keep(slot);  // a failed read needs no action, because nobody waits for it any more
    }
  }
  slot.use = Use::kNothing;
}

// Called in a catch block. The slot's memory becomes the chunk's memory.
void DiskRing::keep(Slot& slot) noexcept {
  if (!failure_) failure_ = std::current_exception();
  DeviceRecord& record = chunks_[static_cast<size_t>(slot.chunk)];
  if (std::byte* const kept = record.kept_data())
    std::memcpy(kept, slot.memory.data(), static_cast<size_t>(record.chunk.bytes));
  else
    record.kept = std::exchange(slot.memory, {});
  slot.use = Use::kNothing;
}

void DiskRing::finish() {
  std::exception_ptr first;
  for (Slot& slot : slots_) try {
      if (slot.use == Use::kLeaving || slot.use == Use::kArriving) end(slot);
    } catch (...) {  // a device error, after which the device is lost
      if (!first) first = std::current_exception();
      slot.use = Use::kNothing;
    }
  for (Slot& slot : slots_) end(slot);
  coming_.clear();
  begun_ = 0;
  if (first) std::rethrow_exception(first);
}

}  // namespace lowtide
