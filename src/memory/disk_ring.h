// Connects a disk and a device: chunks on disk pass through slots in pinned host memory in each step.
//
//   file --read--> slot --copy--> device          device --copy--> slot --write--> file
//
// The device's copies run late, and only the host can start a read or a write after a copy. The host therefore waits
// for a chunk's read before it queues the copy to the device, and for the copy from the device before it starts the
// write. Meanwhile the device executes queued steps, and other reads and writes are running.
//
// Used by one thread at a time; borrows all its constructor arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <vector>

#include "backend/device.h"
#include "core/buffer.h"
#include "memory/filed_chunk.h"
#include "memory/scratch_file.h"

namespace lowtide {

// Page-aligned pinned host memory, into which a file can be read.
class PinnedPages {
 public:
  PinnedPages() = default;
  // Throws kOutOfMemory; the message names the number of bytes.
  PinnedPages(Device& device, int64_t bytes) : memory_(device, MemoryKind::kPinned, bytes) {
    if (offset() != 0) memory_ = DeviceBytes(device, MemoryKind::kPinned, bytes + kPageBytes);
  }
  std::byte* data() const { return memory_.data() ? memory_.data() + offset() : nullptr; }
  int64_t bytes() const { return memory_.bytes(); }

 private:
  int64_t offset() const { return -reinterpret_cast<intptr_t>(memory_.data()) & (kPageBytes - 1); }
  DeviceBytes memory_;
};

// A chunk of a device's state: on the device, in host memory or in a scratch file.
struct DeviceRecord : FiledChunk {
  MemoryKind kind = MemoryKind::kPinned;  // the kind of `memory`; the driver migrates kShared memory
  DeviceBytes memory = {};                // empty if the chunk is on disk
  // If the chunk could not be written to disk, one of these holds it instead.
  PinnedPages kept = {};
  Buffer kept_change = {};  // holds a change that the host made

  Tier tier() const { return !memory.data() ? Tier::kDisk : kind == MemoryKind::kPinned ? Tier::kHost : Tier::kDevice; }
  std::byte* kept_data() const { return kept.data() ? kept.data() : kept_change.data(); }
  void forget_kept() { kept = {}, kept_change = {}; }
};

class DiskRing {
 public:
  DiskRing(Device& device, std::vector<DeviceRecord>& chunks) : device_(device), chunks_(chunks) {}
  ~DiskRing();
  DiskRing(const DiskRing&) = delete;
  DiskRing& operator=(const DiskRing&) = delete;

  // Sets the file, the number of slots (0 if nothing is on disk) and their size. Call this between steps. The next step
  // allocates the slots.
  void resize(ScratchFile* file, int slots, int64_t slot_bytes);
  size_t slots() const { return slots_.size(); }
  int64_t slot_bytes() const { return slot_bytes_; }
  int64_t bytes() const;  // size of the allocated host memory
  const Traffic& traffic() const { return traffic_; }

  // Starts a step that uses these chunks, all on disk, in this order. Allocates memory. Throws kOutOfMemory and then
  // changes nothing.
  void begin_step(std::vector<int> chunks, int threads);
  // Waits until a chunk is in a slot. Then queue its copy to the device and call leaves() with an event that follows
  // the copy. Throws kIo if the chunk cannot be read, or kOutOfMemory.
  const std::byte* bring(int chunk);
  void leaves(Device::Event copied);
  // Returns a slot for a chunk from bring(). Then queue the chunk's copy from the device and call arrives() with an
  // event that follows the copy. The slot will be written whatever else is requested. Throws kOutOfMemory only if the
  // disk has refused all slots and the host has no memory for another slot.
  std::byte* room_for();
  void arrives(int chunk, Device::Event copied);

  // Waits for everything in progress, even if waiting for a part throws. Chunks that could not be written stay in host
  // memory.
  void finish();
  // Returns the failure of the first write that failed since the last call (see KeptInMemory).
  std::exception_ptr take_failure() noexcept { return std::exchange(failure_, nullptr); }

 private:
  enum class Use {
    kNothing,
    kReading,   // from the file
    kTaken,     // from bring() to leaves()
    kLeaving,   // to the device
    kArriving,  // from the device
    kWriting,   // to the file
  };
  struct Slot {
    PinnedPages memory;
    Use use = Use::kNothing;
    int chunk = -1;
    bool read = false;  // for kReading: the read has finished
    ScratchFile::Ticket ticket = 0;
    Device::Event copied;
    int64_t since = 0;  // when the use began, counted over the uses of all slots
  };
  void begin(Slot& slot, Use use, int chunk);
  Slot& free_slot();
  Slot* oldest();
  void note_what_happened();
  void read(Slot& slot, int chunk);
  void read_ahead();
  void write(Slot& slot) noexcept;
  void end(Slot& slot);
  void keep(Slot& slot) noexcept;

  Device& device_;
  std::vector<DeviceRecord>& chunks_;
  ScratchFile* file_ = nullptr;
  std::vector<Slot> slots_;
  int64_t slot_bytes_ = 0, uses_ = 0;
  std::vector<int> coming_;  // the chunks of this step
  size_t begun_ = 0;         // number of chunks whose reads have begun
  int threads_ = 1;          // for checksums
  Traffic traffic_;
  std::exception_ptr failure_;
};

}  // namespace lowtide
