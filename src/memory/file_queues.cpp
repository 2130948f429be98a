#include "memory/file_queues.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace lowtide {
void FileQueues::begin_step(const ChunkWork& work, int threads, bool changes) {
  // Reserve memory, because a running transfer must not be forgotten if memory runs out: one read and one write per
  // chunk, and reads ahead before and after.
  transfers_.reserve(2 * (chunks_.size() + slots_.size()));
  work_ = &work;
  threads_ = threads;
  changes_ = changes;
  for (Transfer& transfer : transfers_) transfer.ahead = true;
}

void FileQueues::read(int chunk, int slot) {
  ChunkRecord& record = chunks_[static_cast<size_t>(chunk)];
  Buffer& memory = slots_[static_cast<size_t>(slot)];
  if (!memory.data()) memory = Buffer(env_, static_cast<size_t>(slot_bytes_));
  std::byte* const to = memory.data();
  if (record.memory.data()) {  // the chunk could not be written; RAM has the only copy
    std::memcpy(to, record.memory.data(), static_cast<size_t>(record.chunk.bytes));
    transfers_.push_back({0, chunk, slot, false, true});
    return;
  }
  transfers_.push_back({file_->read(record.file_offset, to, record.chunk.bytes), chunk, slot, false});
}

void FileQueues::step(int chunk, int slot) {
  const ChunkRecord& record = chunks_[static_cast<size_t>(chunk)];
  const Buffer& memory = slot < 0 ? record.memory : slots_[static_cast<size_t>(slot)];
  const PlacedChunk placed{record.chunk.pieces, memory.data()};
  (*work_)({&placed, 1});
}

// Writes or keeps the slot's chunk, whatever fails, because the slot holds the only copy of the step's result.
void FileQueues::write(int chunk, int slot) {
  if (!changes_) return;
  ChunkRecord& record = chunks_[static_cast<size_t>(chunk)];
  const std::byte* const from = slots_[static_cast<size_t>(slot)].data();
  Transfer& transfer = transfers_.emplace_back(Transfer{0, chunk, slot, true, true});
  try {
    const uint64_t generation = record.generation + 1;
    const uint64_t checksum = record.checksum_of(from, static_cast<size_t>(chunk), generation, threads_);
    transfer.ticket = file_->write(record.file_offset, from, record.chunk.bytes);
    transfer.over = false;
    record.generation = generation;
    record.checksum = checksum;
    traffic_.written_bytes += record.chunk.bytes;
  } catch (...) {
    keep_unwritten(transfer);
  }
}

Queues::Event FileQueues::record(Queue queue) {
  // Steps are done when they return, and slots that they have not changed need no write.
  if (queue == Queue::kStep || (queue == Queue::kOut && !changes_)) return kNone;
  return first_event_ + static_cast<Event>(transfers_.size()) - 1;
}

void FileQueues::wait(Queue, Event event) {
  if (event < first_event_) return;  // kNone, or an event of an earlier step
  const bool writes = transfers_[static_cast<size_t>(event - first_event_)].is_write;
  // All earlier transfers on the event's queue must be done, too, and the file completes them in any order.
  Event& next = waited_[writes];
  for (next = std::max(next, first_event_); next <= event; ++next) {
    Transfer& transfer = transfers_[static_cast<size_t>(next - first_event_)];
    if (transfer.is_write == writes && !transfer.over) complete(transfer);
  }
}

void FileQueues::complete(Transfer& transfer) {
  transfer.over = true;
  if (!transfer.is_write) {
    try {
      return receive(transfer);
    } catch (const Error&) {
      if (!transfer.ahead) throw;
    }
    // A read that failed between two steps is not an error of this step if it succeeds now.
    ChunkRecord& record = chunks_[static_cast<size_t>(transfer.chunk)];
    std::byte* const to = slots_[static_cast<size_t>(transfer.slot)].data();
    transfer.ticket = file_->read(record.file_offset, to, record.chunk.bytes);
    return receive(transfer);
  }
  const Stopwatch waiting(traffic_.waited_seconds);
  try {
    file_->wait(transfer.ticket);
    chunks_[static_cast<size_t>(transfer.chunk)].memory = Buffer();  // the kept copy is obsolete
  } catch (...) {
    keep_unwritten(transfer);
  }
}

void FileQueues::receive(const Transfer& transfer) {
  const ChunkRecord& record = chunks_[static_cast<size_t>(transfer.chunk)];
  {
    const Stopwatch waiting(traffic_.waited_seconds);
    file_->wait(transfer.ticket);
  }
  traffic_.read_bytes += record.chunk.bytes;
  record.check(slots_[static_cast<size_t>(transfer.slot)].data(), static_cast<size_t>(transfer.chunk), threads_);
}

// Called in a catch block when a write has failed. The slot has the only good copy; its memory becomes the chunk's.
void FileQueues::keep_unwritten(const Transfer& transfer) noexcept {
  if (!write_failure_) write_failure_ = std::current_exception();
  ChunkRecord& record = chunks_[static_cast<size_t>(transfer.chunk)];
  Buffer& slot = slots_[static_cast<size_t>(transfer.slot)];
  if (record.memory.data()) {
    std::memcpy(record.memory.data(), slot.data(), static_cast<size_t>(record.chunk.bytes));
    return;
  }
  record.memory = std::move(slot);
  slot = Buffer();  // the next read into this slot allocates a new buffer
}

std::exception_ptr FileQueues::finish(bool reads) noexcept {
  for (Transfer& transfer : transfers_) {
    if (transfer.over || !(transfer.is_write || reads)) continue;
    try {
      complete(transfer);
    } catch (...) {  // nobody waits for this read any more
    }
  }
  const auto under_way =
      std::find_if(transfers_.begin(), transfers_.end(), [](const Transfer& transfer) { return !transfer.over; });
  first_event_ += under_way - transfers_.begin();
  transfers_.erase(transfers_.begin(), under_way);
  return std::exchange(write_failure_, nullptr);
}

}  // namespace lowtide
