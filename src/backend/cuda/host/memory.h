// The backend's own device memory (items, tables), pinned memory, and streams, which free themselves. Each belongs to a
// device whose info outlives it.
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
  int64_t bytes = 0;        // whole pages
  bool registered = false;  // the system's memory; else CUDA's
  void operator()(std::byte* data) const noexcept;
};

// Not from a framework: it is small and lives as long as the backend.
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

// Pinned memory: the system's, in huge pages if they help, near the device, and registered with CUDA. (CUDA's own call
// takes several times as long; frameworks round sizes up to powers of two.) CUDA's own memory if the system's cannot be
// registered. Forked children do not get it: Linux would copy every pinned page in fork().
class HostMemory {
 public:
  // Bytes registered at a time, because registering holds locks of the driver. No copy may cross a piece boundary.
  static constexpr int64_t kPieceBytes = int64_t{1} << 30;

  HostMemory() = default;
  // Call within a Scope of the device. Throws kOutOfMemory, with the process's limit on locked memory.
  HostMemory(const DeviceInfo& info, int64_t bytes);
  std::byte* data() const { return data_.get(); }

 private:
  // Each returns an error unless it has set data_.
  cudaError_t take_registered(const DeviceInfo& info, int64_t bytes);
  cudaError_t take_from_cuda(const DeviceInfo& info, int64_t bytes);

  std::unique_ptr<std::byte, Unpin> data_;
};

// A stream owned by the backend, unordered with the default stream.
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
