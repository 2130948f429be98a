// The backend's own device memory (for items and tables), pinned memory, and streams, which free themselves. Each
// belongs to a device whose DeviceInfo must outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "backend/cuda/host/device_info.h"

namespace lowtide::cuda_host {

struct FreeDevice {
  const DeviceInfo* info = nullptr;
  void operator()(std::byte* data) const noexcept {
    quietly(*info, [&] { return cudaFree(data); });
  }
};
struct Unpin {
  const DeviceInfo* info = nullptr;
  int64_t bytes = 0;        // a multiple of a page
  bool registered = false;  // the system's memory, otherwise CUDA's
  void operator()(std::byte* data) const noexcept;
};

// Device memory that does not come from a framework, because it is small and lives as long as the backend.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(const Scope& scope, size_t bytes) : data_(nullptr, FreeDevice{&scope.info()}) {
    void* data = nullptr;
    scope.check(cudaMalloc(&data, bytes));
    data_.reset(static_cast<std::byte*>(data));
  }
  std::byte* data() const { return data_.get(); }

 private:
  std::unique_ptr<std::byte, FreeDevice> data_;
};

// Pinned memory. It is the system's memory, in huge pages if they help, near the device, and registered with CUDA.
// (CUDA's own allocation takes several times as long, and frameworks round sizes up to powers of two.) If the system's
// memory cannot be registered, it is CUDA's. Forked children do not get the memory, because Linux would copy every
// pinned page in fork().
class HostMemory {
 public:
  // Bytes are registered in pieces, because registering holds locks of the driver. No copy may cross a piece boundary.
  static constexpr int64_t kPieceBytes = int64_t{1} << 30;

  HostMemory() = default;
  // Call this within a Scope of the device. Throws kOutOfMemory, with the process's limit on locked memory.
  HostMemory(const DeviceInfo& info, int64_t bytes);
  std::byte* data() const { return data_.get(); }

 private:
  // Set data_ or return an error.
  cudaError_t take_registered(const DeviceInfo& info, int64_t bytes);
  cudaError_t take_from_cuda(const DeviceInfo& info, int64_t bytes);

  std::unique_ptr<std::byte, Unpin> data_;
};

// A stream that the backend owns, unordered with the default stream.
class OwnStream {
 public:
  explicit OwnStream(const Scope& scope) : info_(scope.info()) {
    scope.check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~OwnStream() {
    quietly(info_, [&] { return cudaStreamDestroy(stream_); });
  }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

  cudaStream_t get() const { return stream_; }

 private:
  const DeviceInfo& info_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace lowtide::cuda_host
