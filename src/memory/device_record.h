// A chunk of the state of parameters on a device, as it is kept: on the device, in host memory or in a scratch file.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/device.h"
#include "core/buffer.h"
#include "memory/filed_chunk.h"

namespace lowtide {

// Pinned host memory that a file can be read into: aligned to pages.
class PinnedPages {
 public:
  PinnedPages() = default;
  // Throws kOutOfMemory, naming the bytes.
  PinnedPages(Device& device, int64_t bytes) : memory_(device, MemoryKind::kPinned, bytes) {
    if (offset() != 0) memory_ = DeviceBytes(device, MemoryKind::kPinned, bytes + kPageBytes);
  }
  std::byte* data() const { return memory_.data() ? memory_.data() + offset() : nullptr; }
  int64_t bytes() const { return memory_.bytes(); }

 private:
  int64_t offset() const { return -reinterpret_cast<intptr_t>(memory_.data()) & (kPageBytes - 1); }
  DeviceBytes memory_;
};

struct DeviceRecord : FiledChunk {
  MemoryKind kind = MemoryKind::kPinned;  // of `memory`; kShared: the driver migrates it
  DeviceBytes memory = {};                // none: it is on disk
  // One of these has instead what could not be written there.
  PinnedPages kept = {};
  Buffer kept_change = {};  // made by the host

  Tier tier() const { return !memory.data() ? Tier::kDisk : kind == MemoryKind::kPinned ? Tier::kHost : Tier::kDevice; }
  std::byte* kept_data() const { return kept.data() ? kept.data() : kept_change.data(); }
  void forget_kept() { kept = {}, kept_change = {}; }
};

}  // namespace lowtide
