// One device, and what a call does first and last there.
#pragma once

#include <cuda_runtime.h>

#include "backend/cuda/device/launch.h"
#include "backend/cuda/host/contexts.h"
#include "core/error.h"

namespace lowtide::cuda_host {

// Facts about a device, asked for once.
struct DeviceInfo {
  int ordinal = 0;
  CUdevice driver_device = -1;      // the driver's number for it
  CUcontext context = nullptr;      // the primary one
  int processors = 0;               // multiprocessors
  int numa_node = -1;               // of the host's memory that is near; -1: not known
  bool registers = false;           // takes the system's memory as pinned (cudaHostRegister)
  bool reaches_all = false;         // uses the host's page tables: kernels can be given any memory of the process
  bool reaches_pinned = false;      // and pinned memory by the host's own address
  bool concurrent_managed = false;  // managed memory can be prefetched, and used by the host at the same time
  bool synchronous = false;         // LOWTIDE_SYNC=1: every operation is waited for, to name the one that fails

  cuda_kernels::Queue queue(cudaStream_t stream) const { return {stream, processors, ordinal}; }
};

// ordinal: -1 for the device that is present (cudaGetDevice). Throws kUnsupported if there is no device, or none that
// kernels of this build run on, kInvalidArgument for an ordinal that there is not.
DeviceInfo describe_device(int ordinal);

// Whether work that is queued on the stream is recorded for a graph.
cudaError_t find_capture(cudaStream_t stream, bool& captured);

// Sets `ordinal` to that of the stream's device; leaves it where CUDA cannot be asked. While a stream is captured,
// cudaStreamGetDevice fails and spoils the capture, which the manual does not say (docs/cuda.md).
cudaError_t find_device(cudaStream_t stream, int& ordinal);

// The time of one call on the device: its context is the current one, errors are named by what was being done, and
// memory may be had although some stream is being captured. What the caller had set is restored.
class Scope {
 public:
  // Throws kDeviceLost if it is.
  Scope(const DeviceInfo& info, const char* doing);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  // Throws what an error means, and marks the device if it is lost.
  void check(cudaError_t code) const {
    if (code != cudaSuccess) [[unlikely]]
      raise(code);
  }
  // Behind what was queued: where DeviceInfo::synchronous, waits for it.
  void queued(cudaStream_t stream) const;
  // find_capture(), whose errors are thrown.
  bool is_capturing(cudaStream_t stream) const;

  const DeviceInfo& info() const { return info_; }

 private:
  [[noreturn]] void raise(cudaError_t code) const;

  const DeviceInfo& info_;
  const char* doing_;
  bool entered_ = false;  // the caller's context is another
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Runs f() on the device, for frees: does nothing if it is lost, and no error gets out of it.
template <class Fn>
void quietly(const DeviceInfo& info, Fn&& f) noexcept {
  try {
    const Scope scope(info, "freeing");
    scope.check(f());
  } catch (const Error&) {
  }
}

}  // namespace lowtide::cuda_host
