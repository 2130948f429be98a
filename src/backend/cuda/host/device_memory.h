// Device memory of the backend's own (items, tables), which frees itself. Not a framework's: it lives as long as the
// backend, and is small.
#pragma once

#include <cstddef>
#include <utility>

#include "backend/cuda/host/device_info.h"

namespace lowtide::cuda_host {

class DeviceMemory {
 public:
  DeviceMemory() = default;
  // scope: of a device whose info outlives this object.
  DeviceMemory(const Scope& scope, size_t bytes) : info_(&scope.info()) {
    void* data = nullptr;
    scope.check(cudaMalloc(&data, bytes));
    data_ = static_cast<std::byte*>(data);
  }
  ~DeviceMemory() {
    if (data_) quietly(*info_, [&] { return cudaFree(data_); });
  }
  DeviceMemory(DeviceMemory&& other) noexcept : info_(other.info_), data_(std::exchange(other.data_, nullptr)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(info_, other.info_);
    std::swap(data_, other.data_);
    return *this;
  }

  std::byte* data() const { return data_; }

 private:
  const DeviceInfo* info_ = nullptr;
  std::byte* data_ = nullptr;
};

// A stream of the backend's own, unordered with the default stream.
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
