#include "memory/file_lanes.h"

#include <chrono>
#include <cstring>

#include "core/error.h"

namespace lowtide {
namespace {

// Adds the seconds of its life.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

void FileLanes::set_work(Work work, int threads) {
  work_ = std::move(work);
  threads_ = threads;
  for (Transfer& transfer : transfers_) transfer.ahead = true;
}

void FileLanes::read(int chunk, int slot) {
  ChunkRecord& record = chunks_[static_cast<size_t>(chunk)];
  Buffer& memory = slots_[static_cast<size_t>(slot)];
  if (!memory.data()) memory = Buffer(static_cast<size_t>(slot_bytes_));
  std::byte* const to = memory.data();
  if (record.memory.data()) {  // it could not be written; RAM has the only copy
    std::memcpy(to, record.memory.data(), static_cast<size_t>(record.chunk.bytes));
    transfers_.push_back({0, chunk, slot, false, true});
    return;
  }
  transfers_.push_back({file_->read(record.file_offset, to, record.chunk.bytes), chunk, slot, false});
}

void FileLanes::step(int chunk, int slot) {
  ChunkRecord& record = chunks_[static_cast<size_t>(chunk)];
  work_(chunk, slot < 0 ? record.memory.data() : slots_[static_cast<size_t>(slot)].data());
}

void FileLanes::write(int chunk, int slot) {
  ChunkRecord& record = chunks_[static_cast<size_t>(chunk)];
  const std::byte* const from = slots_[static_cast<size_t>(slot)].data();
  ++record.generation;
  record.checksum = chunk_checksum(from, record.chunk.bytes, chunk, record.generation, threads_);
  ScratchFile::Ticket ticket = -1;
  try {
    ticket = file_->write(record.file_offset, from, record.chunk.bytes);
  } catch (const Error& error) {
    if (write_error_.empty()) write_error_ = error.what();
    keep({0, chunk, slot, true});
    transfers_.push_back({0, chunk, slot, true, true});
    return;
  }
  transfers_.push_back({ticket, chunk, slot, true});
  traffic_.written_bytes += record.chunk.bytes;
}

Lanes::Event FileLanes::record(Lane lane) {
  if (lane == Lane::kStep) return kNone;  // steps are over when they return
  return first_event_ + static_cast<Event>(transfers_.size()) - 1;
}

void FileLanes::wait(Lane, Event event) {
  if (event < first_event_) return;  // none, or of an earlier step
  Transfer& transfer = transfers_[static_cast<size_t>(event - first_event_)];
  if (!transfer.over) complete(transfer);
}

void FileLanes::complete(Transfer& transfer) {
  transfer.over = true;
  if (!transfer.is_write) {
    try {
      return receive(transfer);
    } catch (const Error&) {
      if (!transfer.ahead) throw;
    }
    // What went wrong between two steps is no step's error, if it goes well now.
    ChunkRecord& record = chunks_[static_cast<size_t>(transfer.chunk)];
    std::byte* const to = slots_[static_cast<size_t>(transfer.slot)].data();
    transfer.ticket = file_->read(record.file_offset, to, record.chunk.bytes);
    return receive(transfer);
  }
  const Stopwatch waiting(traffic_.waited_seconds);
  try {
    file_->wait(transfer.ticket);
    chunks_[static_cast<size_t>(transfer.chunk)].memory = Buffer();  // what was kept is out of date
  } catch (const Error& error) {
    if (write_error_.empty()) write_error_ = error.what();
    keep(transfer);
  }
}

void FileLanes::receive(const Transfer& transfer) {
  const ChunkRecord& record = chunks_[static_cast<size_t>(transfer.chunk)];
  {
    const Stopwatch waiting(traffic_.waited_seconds);
    file_->wait(transfer.ticket);
  }
  traffic_.read_bytes += record.chunk.bytes;
  const std::byte* const got = slots_[static_cast<size_t>(transfer.slot)].data();
  if (chunk_checksum(got, record.chunk.bytes, transfer.chunk, record.generation, threads_) != record.checksum)
    fail_io(0,
            "chunk %d of the optimizer's state (%lld bytes) read back from the disk is not what was written; the file "
            "or the disk was damaged",
            transfer.chunk, static_cast<long long>(record.chunk.bytes));
}

// The write failed: what is in the slot is the only good copy. Its memory becomes the chunk's.
void FileLanes::keep(const Transfer& transfer) {
  ChunkRecord& record = chunks_[static_cast<size_t>(transfer.chunk)];
  Buffer& slot = slots_[static_cast<size_t>(transfer.slot)];
  if (record.memory.data()) {
    std::memcpy(record.memory.data(), slot.data(), static_cast<size_t>(record.chunk.bytes));
    return;
  }
  record.memory = std::move(slot);
  slot = Buffer();  // the next read through it allocates another one
}

std::string FileLanes::finish_writes() noexcept { return finish(false); }

std::string FileLanes::finish() noexcept { return finish(true); }

std::string FileLanes::finish(bool reads) noexcept {
  for (Transfer& transfer : transfers_) {
    if (transfer.over || !(transfer.is_write || reads)) continue;
    try {
      complete(transfer);
    } catch (const std::exception& error) {
      if (write_error_.empty() && transfer.is_write) write_error_ = error.what();
    }
  }
  for (; !transfers_.empty() && transfers_.front().over; transfers_.pop_front()) ++first_event_;
  return std::exchange(write_error_, {});
}

}  // namespace lowtide
