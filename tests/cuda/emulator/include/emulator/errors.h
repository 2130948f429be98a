// The errors of the CUDA runtime.
#pragma once

// X(name, number, what it says)
#define LT_CUDA_ERRORS(X)                                                                                            \
  X(Success, 0, "no error")                                                                                          \
  X(ErrorInvalidValue, 1, "invalid argument")                                                                        \
  X(ErrorMemoryAllocation, 2, "out of memory")                                                                       \
  X(ErrorInitializationError, 3, "initialization error")                                                             \
  X(ErrorCudartUnloading, 4, "driver shutting down")                                                                 \
  X(ErrorInvalidConfiguration, 9, "invalid configuration argument")                                                  \
  X(ErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy")                                            \
  X(ErrorStubLibrary, 34, "CUDA driver is a stub library")                                                           \
  X(ErrorInsufficientDriver, 35, "CUDA driver version is insufficient for CUDA runtime version")                     \
  X(ErrorCallRequiresNewerDriver, 36, "API call is not supported in the installed CUDA driver")                      \
  X(ErrorDevicesUnavailable, 46, "CUDA-capable device(s) is/are busy or unavailable")                                \
  X(ErrorInvalidDeviceFunction, 98, "invalid device function")                                                       \
  X(ErrorNoDevice, 100, "no CUDA-capable device is detected")                                                        \
  X(ErrorInvalidDevice, 101, "invalid device ordinal")                                                               \
  X(ErrorDeviceUninitialized, 201, "invalid device context")                                                         \
  X(ErrorNoKernelImageForDevice, 209, "no kernel image is available for execution on the device")                    \
  X(ErrorECCUncorrectable, 214, "uncorrectable ECC error encountered")                                               \
  X(ErrorNvlinkUncorrectable, 220, "uncorrectable NVLink error detected during the execution")                       \
  X(ErrorUnsupportedPtxVersion, 222, "the provided PTX was compiled with an unsupported toolchain.")                 \
  X(ErrorContained, 226, "Invalid memory access contained")                                                          \
  X(ErrorOperatingSystem, 304, "OS call failed or operation not supported on this OS")                               \
  X(ErrorInvalidResourceHandle, 400, "invalid resource handle")                                                      \
  X(ErrorIllegalState, 401, "the operation cannot be performed in the present state")                                \
  X(ErrorNotReady, 600, "device not ready")                                                                          \
  X(ErrorIllegalAddress, 700, "an illegal memory access was encountered")                                            \
  X(ErrorLaunchOutOfResources, 701, "too many resources requested for launch")                                       \
  X(ErrorLaunchTimeout, 702, "the launch timed out and was terminated")                                              \
  X(ErrorContextIsDestroyed, 709, "context is destroyed")                                                            \
  X(ErrorAssert, 710, "device-side assert triggered")                                                                \
  X(ErrorHostMemoryAlreadyRegistered, 712, "part or all of the requested memory range is already mapped")            \
  X(ErrorHostMemoryNotRegistered, 713, "pointer does not correspond to a registered memory region")                  \
  X(ErrorHardwareStackError, 714, "hardware stack error")                                                            \
  X(ErrorIllegalInstruction, 715, "an illegal instruction was encountered")                                          \
  X(ErrorMisalignedAddress, 716, "misaligned address")                                                               \
  X(ErrorInvalidAddressSpace, 717, "operation not supported on global/shared address space")                         \
  X(ErrorInvalidPc, 718, "invalid program counter")                                                                  \
  X(ErrorLaunchFailure, 719, "unspecified launch failure")                                                           \
  X(ErrorTensorMemoryLeak, 721, "tensor memory not completely freed")                                                \
  X(ErrorNotPermitted, 800, "operation not permitted")                                                               \
  X(ErrorNotSupported, 801, "operation not supported")                                                               \
  X(ErrorSystemNotReady, 802, "system not yet initialized")                                                          \
  X(ErrorSystemDriverMismatch, 803, "system has unsupported display driver / cuda driver combination")               \
  X(ErrorCompatNotSupportedOnDevice, 804, "forward compatibility was attempted on non supported HW")                 \
  X(ErrorStreamCaptureUnsupported, 900, "operation not permitted when stream is capturing")                          \
  X(ErrorStreamCaptureInvalidated, 901, "operation failed due to a previous error during capture")                   \
  X(ErrorStreamCaptureMerge, 902, "operation would result in a merge of separate capture sequences")                 \
  X(ErrorStreamCaptureUnmatched, 903, "capture was not ended in the same stream as it began")                        \
  X(ErrorStreamCaptureUnjoined, 904, "capturing stream has unjoined work")                                           \
  X(ErrorStreamCaptureIsolation, 905, "dependency created on uncaptured work in another stream")                     \
  X(ErrorStreamCaptureImplicit, 906, "operation would make the legacy stream depend on a capturing blocking stream") \
  X(ErrorCapturedEvent, 907, "operation not permitted on an event last recorded in a capturing stream")              \
  X(ErrorStreamCaptureWrongThread, 908, "attempt to terminate a thread-local capture sequence from another thread")  \
  X(ErrorExternalDevice, 911, "an async error has occurred in external entity outside of CUDA")                      \
  X(ErrorUnknown, 999, "unknown error")

enum cudaError {
#define LT_ENUMERATOR(name, number, text) cuda##name = number,
  LT_CUDA_ERRORS(LT_ENUMERATOR)
#undef LT_ENUMERATOR
};
typedef enum cudaError cudaError_t;
