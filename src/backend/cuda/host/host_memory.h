// Pinned memory: the system's, of huge pages where they help, near the device, and registered with CUDA. (CUDA's own
// call for it takes several times as long; frameworks round sizes up to powers of two.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "backend/cuda/host/device_info.h"

namespace lowtide::cuda_host {

class HostMemory {
 public:
  // Registered at a time, since registering holds locks of the driver. No copy may cross the border of two pieces.
  static constexpr int64_t kPieceBytes = int64_t{1} << 30;

  HostMemory() = default;
  // Within a Scope of the device, whose info outlives this object. Throws kOutOfMemory, saying what the process may
  // lock.
  HostMemory(const DeviceInfo& info, int64_t bytes);
  ~HostMemory();
  HostMemory(HostMemory&& other) noexcept
      : info_(other.info_), data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  HostMemory& operator=(HostMemory&& other) noexcept {
    std::swap(info_, other.info_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  std::byte* data() const { return data_; }

 private:
  const DeviceInfo* info_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;  // whole pages
};

}  // namespace lowtide::cuda_host
