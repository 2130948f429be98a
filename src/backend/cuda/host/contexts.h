// The primary contexts of devices, through the driver's functions. cudaSetDevice is unsuitable for a library, because
// restoring the caller's device creates a context of several hundred MB there, which may never be used.
#pragma once

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

namespace lowtide::cuda_host {

// Gives the driver's number for the device with this ordinal, which may differ, and its primary context, which CUDA's
// runtime also uses. The context is created if missing, and kept until the process ends. The driver must be initialized
// (cudaGetDeviceCount). Throws kUnsupported if the driver lacks the functions.
cudaError_t retain_context(int ordinal, CUdevice& device, CUcontext& context);

// Makes `context` the thread's current context unless another context of the same device is current (a caller's own,
// with its streams). Sets `entered` if leave_context() must follow.
cudaError_t enter_context(CUdevice device, CUcontext context, bool& entered);
// Restores the previous current context, if there was one.
void leave_context() noexcept;

}  // namespace lowtide::cuda_host
