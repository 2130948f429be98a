#include "backend/cuda/host/contexts.h"

#include "backend/cuda/host/errors.h"

namespace lowtide::cuda_host {
namespace {

// Names refer to different functions in later versions of CUDA: cuCtxGetDevice has two arguments from 13.0 on.
constexpr unsigned int kVersion = 12000;

cudaError_t error_of(CUresult result) { return static_cast<cudaError_t>(result); }  // the numbers are the same

struct Driver {
  PFN_cuDeviceGet_v2000 device = nullptr;
  PFN_cuDevicePrimaryCtxRetain_v7000 retain = nullptr;
  PFN_cuCtxPushCurrent_v4000 push = nullptr;
  PFN_cuCtxPopCurrent_v4000 pop = nullptr;
  PFN_cuCtxGetCurrent_v4000 current = nullptr;
  PFN_cuCtxGetDevice_v2000 current_device = nullptr;

  Driver() {
    find("cuDeviceGet", device);
    find("cuDevicePrimaryCtxRetain", retain);
    find("cuCtxPushCurrent", push);
    find("cuCtxPopCurrent", pop);
    find("cuCtxGetCurrent", current);
    find("cuCtxGetDevice", current_device);
  }

 private:
  template <class Function>
  void find(const char* name, Function& function) {
    void* found = nullptr;
    const cudaError_t code = cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault);
    if (code != cudaSuccess) cudaGetLastError();
    if (!found)
      fail(ErrorKind::kUnsupported, "CUDA's driver has no function %s: %s", name,
           words_of(code == cudaSuccess ? cudaErrorCallRequiresNewerDriver : code).c_str());
    function = reinterpret_cast<Function>(found);
  }
};

const Driver& driver() {
  static const Driver found;
  return found;
}

}  // namespace

cudaError_t retain_context(int ordinal, CUdevice& device, CUcontext& context) {
  const CUresult found = driver().device(&device, ordinal);
  return error_of(found == CUDA_SUCCESS ? driver().retain(&context, device) : found);
}

cudaError_t enter_context(CUdevice device, CUcontext context, bool& entered) {
  entered = false;
  // First check that a context is current: compute-sanitizer reports asking for the device of none as an error.
  CUcontext present = nullptr;
  CUresult found = driver().current(&present);
  if (found != CUDA_SUCCESS) return error_of(found);
  if (present == context) return cudaSuccess;
  if (present) {
    CUdevice of_present = -1;
    found = driver().current_device(&of_present);
    if (found == CUDA_SUCCESS && of_present == device) return cudaSuccess;
    if (found != CUDA_SUCCESS && found != CUDA_ERROR_INVALID_CONTEXT) return error_of(found);
  }
  const cudaError_t code = error_of(driver().push(context));
  entered = code == cudaSuccess;
  return code;
}

void leave_context() noexcept {
  CUcontext left = nullptr;
  driver().pop(&left);
}

}  // namespace lowtide::cuda_host
