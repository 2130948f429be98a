#include "backend/cuda/host/errors.h"

#include <algorithm>

namespace lowtide::cuda_host {
namespace {

const char* advice_for(cudaError_t code) {
  switch (code) {
    case cudaErrorInsufficientDriver:
    case cudaErrorCallRequiresNewerDriver:
    case cudaErrorUnsupportedPtxVersion:
      return "; update NVIDIA's driver (580 or newer for CUDA 13, 525 or newer for CUDA 12)";
    case cudaErrorNoDevice:
    case cudaErrorDevicesUnavailable:
      return "; see nvidia-smi, and CUDA_VISIBLE_DEVICES";
    case cudaErrorNoKernelImageForDevice:
      return "; this build has kernels for compute capability 8.0 and newer";
    case cudaErrorInvalidResourceHandle:
      return "; is the stream or event still alive, and of this device?";
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureImplicit:
      return "; while a stream is captured, use no other that waits for it (the default stream does)";
    default:
      return "";
  }
}

}  // namespace

ErrorKind kind_of(cudaError_t code) {
  switch (code) {
    case cudaErrorMemoryAllocation:
      return ErrorKind::kOutOfMemory;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidDevice:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorHostMemoryAlreadyRegistered:
    case cudaErrorHostMemoryNotRegistered:
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureMerge:
    case cudaErrorStreamCaptureUnmatched:
    case cudaErrorStreamCaptureUnjoined:
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorStreamCaptureImplicit:
    case cudaErrorStreamCaptureWrongThread:
    case cudaErrorCapturedEvent:
      return ErrorKind::kInvalidArgument;
    case cudaErrorInsufficientDriver:
    case cudaErrorCallRequiresNewerDriver:
    case cudaErrorNoDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorNotSupported:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
      return ErrorKind::kUnsupported;
    case cudaErrorCudartUnloading:  // the process ends
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorExternalDevice:
      return ErrorKind::kDeviceLost;
    default:
      return ErrorKind::kInternal;
  }
}

std::string words_of(cudaError_t code) {
  return format("%s (%s)%s", cudaGetErrorString(code), cudaGetErrorName(code), advice_for(code));
}

std::atomic<bool>& lost(int ordinal) {
  constexpr int kMost = 64;  // devices with a flag of their own; the last is that of all others
  static std::atomic<bool> flags[kMost];
  return flags[std::clamp(ordinal, 0, kMost - 1)];
}

}  // namespace lowtide::cuda_host
