// The primary contexts of devices, through the driver's own functions. cudaSetDevice is unsuitable for a library:
// restoring the caller's device creates a context on it, some hundred MB, though nobody may ever use it.
#pragma once

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

namespace lowtide::cuda_host {

// The driver's number for the device of this ordinal, which may differ, and its context, which CUDA's runtime also
// uses. Created if missing, and kept until the process ends, like the runtime's. The driver must be initialized
// (cudaGetDeviceCount). Throws kUnsupported if the driver lacks the functions.
cudaError_t retain_context(int ordinal, CUdevice& device, CUcontext& context);

// Makes it the thread's current context, unless another context of the same device is current (a caller's own, with its
// streams). entered: whether leave_context() must follow.
cudaError_t enter_context(CUdevice device, CUcontext context, bool& entered);
// Restores the previous current context, or none.
void leave_context() noexcept;

}  // namespace lowtide::cuda_host
