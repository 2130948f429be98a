#include "backend/cuda/host/errors.h"

#include <algorithm>
#include <initializer_list>

#include "backend/cuda/host/code.h"
#include "core/process.h"

namespace lowtide::cuda_host {
namespace {

std::atomic<int64_t> forks_before = -1;  // fork count when a device was first opened; -1 before that

std::string advice_for(cudaError_t code) {
  switch (code) {
    case cudaErrorInitializationError:
      return "; CUDA does not survive fork(): start children of a process that has used CUDA by spawn or forkserver";
    case cudaErrorInsufficientDriver:
    case cudaErrorCallRequiresNewerDriver:
    case cudaErrorUnsupportedPtxVersion:
      return "; update NVIDIA's driver (580 or newer for CUDA 13, 525 or newer for CUDA 12)";
    case cudaErrorNoDevice:
    case cudaErrorDevicesUnavailable:
      return "; see nvidia-smi, and CUDA_VISIBLE_DEVICES";
    case cudaErrorNoKernelImageForDevice:
      return "; this build has kernels for compute capability " + capabilities(kCode);
    case cudaErrorInvalidDeviceFunction:
      return "; does this build lack the rule's kernels? LOWTIDE_CUDA_RULES chooses them, and none leaves out any";
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
  struct Codes {
    ErrorKind kind;
    std::initializer_list<cudaError_t> all;
  };
  static const Codes kCodes[] = {
      {ErrorKind::kOutOfMemory, {cudaErrorMemoryAllocation}},
      {ErrorKind::kInvalidArgument,
       {cudaErrorInvalidValue, cudaErrorInvalidDevice, cudaErrorInvalidResourceHandle,
        cudaErrorHostMemoryAlreadyRegistered, cudaErrorHostMemoryNotRegistered, cudaErrorStreamCaptureUnsupported,
        cudaErrorStreamCaptureInvalidated, cudaErrorStreamCaptureMerge, cudaErrorStreamCaptureUnmatched,
        cudaErrorStreamCaptureUnjoined, cudaErrorStreamCaptureIsolation, cudaErrorStreamCaptureImplicit,
        cudaErrorStreamCaptureWrongThread, cudaErrorCapturedEvent}},
      {ErrorKind::kUnsupported,
       {cudaErrorInitializationError, cudaErrorInsufficientDriver, cudaErrorCallRequiresNewerDriver, cudaErrorNoDevice,
        cudaErrorDevicesUnavailable, cudaErrorNotSupported, cudaErrorInvalidDeviceFunction,
        cudaErrorNoKernelImageForDevice, cudaErrorUnsupportedPtxVersion, cudaErrorSystemNotReady,
        cudaErrorSystemDriverMismatch, cudaErrorCompatNotSupportedOnDevice}},
      // cudaErrorCudartUnloading comes while the process ends.
      {ErrorKind::kDeviceLost,
       {cudaErrorCudartUnloading, cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable, cudaErrorContained,
        cudaErrorIllegalAddress, cudaErrorLaunchTimeout, cudaErrorContextIsDestroyed, cudaErrorAssert,
        cudaErrorHardwareStackError, cudaErrorIllegalInstruction, cudaErrorMisalignedAddress,
        cudaErrorInvalidAddressSpace, cudaErrorInvalidPc, cudaErrorLaunchFailure, cudaErrorTensorMemoryLeak,
        cudaErrorExternalDevice}},
  };
  for (const Codes& codes : kCodes)
    if (std::find(codes.all.begin(), codes.all.end(), code) != codes.all.end()) return codes.kind;
  return ErrorKind::kInternal;
}

std::string words_of(cudaError_t code) {
  return format("%s (%s)%s", cudaGetErrorString(code), cudaGetErrorName(code), advice_for(code).c_str());
}

std::atomic<bool>& lost(int ordinal) {
  static std::atomic<bool> flags[kMostDevices];
  return flags[ordinal];
}

bool is_forked() {
  const int64_t before = forks_before;
  return before >= 0 && forks() != before;
}

void note_forks() {
  int64_t none = -1;
  forks_before.compare_exchange_strong(none, forks());
}

void fail_forked(ErrorKind kind, const char* doing) {
  fail(kind,
       "CUDA, %s: this process was forked from one that had opened a device, and CUDA does not survive that: start it "
       "by spawn or forkserver, or fork before any device is opened",
       doing);
}

}  // namespace lowtide::cuda_host
