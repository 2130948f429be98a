// Memory that is shared between host and device. It is pinned host memory if the device's driver does not page shared
// memory, and plain host memory if there is no device. Tracks all allocations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "backend/backend.h"

namespace lowtide::bnb {

// Opens device `number` of a backend. Throws Error.
using OpenDevice = std::unique_ptr<Backend>(int number);

// Used by one thread at a time. All functions may throw Error.
class Memory {
 public:
  // Uses the first of these backends whose device 0 can be opened, or host memory if there is none.
  explicit Memory(std::span<OpenDevice* const> backends);

  const std::string& place() const { return place_; }
  void* allocate(size_t bytes);
  void free(void* memory);
  void prefetch(const void* memory, size_t bytes, int device);
  // Fills elements of 1 or 4 bytes like Device::fill, and waits.
  void fill(void* memory, uint32_t pattern, int pattern_bytes, int64_t count);

 private:
  Device* device() { return devices_.empty() ? nullptr : devices_.begin()->second->device(); }
  bool is_shared() { return device() && device()->pages_shared(); }
  // Throws kInvalidArgument unless the bytes belong to one allocation.
  void require_ours(const void* memory, int64_t bytes) const;
  void set(void* memory, uint32_t pattern, int pattern_bytes, int64_t count);

  OpenDevice* open_ = nullptr;
  std::string place_;
  std::map<int, std::unique_ptr<Backend>> devices_;  // the opened devices, by number
  std::map<uintptr_t, int64_t> allocations_;         // bytes by address
};

}  // namespace lowtide::bnb
