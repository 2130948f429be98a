// The primary contexts of devices, by the driver's own functions. cudaSetDevice does not do for a library: setting back
// what the caller had makes a context on that device, some hundred MB of it, though nobody may ever use it.
#pragma once

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

namespace lowtide::cuda_host {

// The driver's device of this ordinal, a number that need not be the same, and its context, which CUDA's runtime uses,
// too. Made if there is none, and kept until the process ends, as the runtime keeps it. The driver has been initialized
// (cudaGetDeviceCount). Throws kUnsupported if the driver lacks the functions.
cudaError_t retain_context(int ordinal, CUdevice& device, CUcontext& context);

// Makes it the current one of the thread, unless that is another of the same device (a caller's own, with its streams).
// entered: whether leave_context() is due.
cudaError_t enter_context(CUdevice device, CUcontext context, bool& entered);
// The current context is again what it was: none, if there was none.
void leave_context() noexcept;

}  // namespace lowtide::cuda_host
