// Describes a device, and begins and ends each call on it.
#pragma once

#include <cuda_runtime.h>

#include "backend/cuda/device/launch.h"
#include "backend/cuda/host/contexts.h"
#include "core/error.h"

namespace lowtide::cuda_host {

// Facts about a device, queried once.
struct DeviceInfo {
  int ordinal = 0;
  CUdevice driver_device = -1;      // the driver's number for the device
  CUcontext context = nullptr;      // the primary context
  int processors = 0;               // multiprocessors
  int numa_node = -1;               // node of the nearest host memory; -1 if unknown
  bool registers = false;           // can register the system's memory as pinned (cudaHostRegister)
  bool reaches_all = false;         // kernels can access all memory of the process by the host's page tables
  bool reaches_pinned = false;      // kernels can access pinned memory by the host's own address
  bool concurrent_managed = false;  // managed memory can be prefetched, and used by the host concurrently
  bool synchronous = false;         // LOWTIDE_SYNC=1: waits for every operation, to name one that fails

  cuda_kernels::Queue queue(cudaStream_t stream) const { return {stream, processors, ordinal}; }
};

// Describes the device with this ordinal; -1 means the current device (cudaGetDevice). Throws kUnsupported if no device
// exists or runs this build's kernels, and kInvalidArgument for an invalid ordinal.
DeviceInfo describe_device(int ordinal);

// Sets `captured` to true if work queued on the stream is recorded for a graph.
cudaError_t find_capture(cudaStream_t stream, bool& captured);

// Sets `ordinal` to the ordinal of the stream's device; leaves it unchanged if CUDA cannot be asked. While a stream is
// captured, cudaStreamGetDevice fails and invalidates the capture, which the manual does not say
// (docs/project/cuda.md).
cudaError_t find_device(cudaStream_t stream, int& ordinal);

// The duration of one call on the device: its context is current, errors name the operation, and memory can be
// allocated even while some stream is being captured. Restores the caller's settings.
class Scope {
 public:
  // Throws kDeviceLost if the device is lost.
  Scope(const DeviceInfo& info, const char* doing);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  // Throws the code's error, if any, and marks the device if it is lost.
  void check(cudaError_t code) const {
    if (code != cudaSuccess) [[unlikely]]
      raise(code);
  }
  // Call this after queueing work; waits for it if DeviceInfo::synchronous is set.
  void queued(cudaStream_t stream) const;
  // Returns the result of find_capture(). Throws its errors.
  bool is_capturing(cudaStream_t stream) const;

  const DeviceInfo& info() const { return info_; }

 private:
  [[noreturn]] void raise(cudaError_t code) const;

  const DeviceInfo& info_;
  const char* doing_;
  bool entered_ = false;  // the caller's context is a different context
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Runs f() on the device, for frees. Does nothing if the device is lost, and ignores errors.
template <class Fn>
void quietly(const DeviceInfo& info, Fn&& f) noexcept {
  try {
    const Scope scope(info, "freeing");
    scope.check(f());
  } catch (const Error&) {
  }
}

}  // namespace lowtide::cuda_host
