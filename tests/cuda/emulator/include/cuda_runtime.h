// A stand-in for the CUDA runtime on machines without a GPU: the part of its interface that the CUDA backend uses, with
// the names and numbers of CUDA 13 (of 12 with -DCUDART_VERSION=12080). Kernels run on the CPU (emulator/kernel.h);
// streams are late; memory of a device cannot be touched by the host. cuda_emulator.h controls it.
#pragma once

#include <cstddef>
#include <cstdint>

#ifndef CUDART_VERSION
#define CUDART_VERSION 13000
#endif

#include "emulator/errors.h"
#include "emulator/kernel.h"

typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
typedef struct CUgraph_st* cudaGraph_t;
typedef struct CUgraphExec_st* cudaGraphExec_t;

#define cudaStreamLegacy (reinterpret_cast<cudaStream_t>(1))
#define cudaStreamDefault 0x00
#define cudaStreamNonBlocking 0x01
#define cudaEventDefault 0x00
#define cudaEventBlockingSync 0x01
#define cudaEventDisableTiming 0x02
#define cudaEventWaitDefault 0x00
#define cudaHostRegisterDefault 0x00
#define cudaHostRegisterPortable 0x01
#define cudaHostRegisterMapped 0x02
#define cudaHostRegisterReadOnly 0x08
#define cudaHostAllocDefault 0x00
#define cudaHostAllocPortable 0x01
#define cudaHostAllocMapped 0x02
#define cudaMemAttachGlobal 0x01
#define cudaCpuDeviceId (-1)
#define cudaEnableDefault 0x0

enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4
};
enum cudaMemoryType {
  cudaMemoryTypeUnregistered = 0,
  cudaMemoryTypeHost = 1,
  cudaMemoryTypeDevice = 2,
  cudaMemoryTypeManaged = 3
};
enum cudaMemoryAdvise {
  cudaMemAdviseSetReadMostly = 1,
  cudaMemAdviseUnsetReadMostly = 2,
  cudaMemAdviseSetPreferredLocation = 3,
  cudaMemAdviseUnsetPreferredLocation = 4,
  cudaMemAdviseSetAccessedBy = 5,
  cudaMemAdviseUnsetAccessedBy = 6
};
enum cudaMemLocationType {
  cudaMemLocationTypeInvalid = 0,
  cudaMemLocationTypeDevice = 1,
  cudaMemLocationTypeHost = 2,
  cudaMemLocationTypeHostNuma = 3,
  cudaMemLocationTypeHostNumaCurrent = 4
};
struct cudaMemLocation {
  cudaMemLocationType type;
  int id;
};
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal = 0,
  cudaStreamCaptureModeThreadLocal = 1,
  cudaStreamCaptureModeRelaxed = 2
};
enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone = 0,
  cudaStreamCaptureStatusActive = 1,
  cudaStreamCaptureStatusInvalidated = 2
};
enum cudaDriverEntryPointQueryResult {
  cudaDriverEntryPointSuccess = 0,
  cudaDriverEntryPointSymbolNotFound = 1,
  cudaDriverEntryPointVersionNotSufficent = 2
};
enum cudaDeviceAttr {
  cudaDevAttrMaxThreadsPerBlock = 1,
  cudaDevAttrMaxSharedMemoryPerBlock = 8,
  cudaDevAttrWarpSize = 10,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrIntegrated = 18,
  cudaDevAttrCanMapHostMemory = 19,
  cudaDevAttrMaxThreadsPerMultiProcessor = 39,
  cudaDevAttrAsyncEngineCount = 40,
  cudaDevAttrUnifiedAddressing = 41,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrManagedMemory = 83,
  cudaDevAttrPageableMemoryAccess = 88,
  cudaDevAttrConcurrentManagedAccess = 89,
  cudaDevAttrCanUseHostPointerForRegisteredMem = 91,
  cudaDevAttrHostRegisterSupported = 99,
  cudaDevAttrPageableMemoryAccessUsesHostPageTables = 100,
  cudaDevAttrHostNumaId = 134
};
struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem;
  int major, minor, multiProcessorCount;
};
struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
  void* devicePointer;
  void* hostPointer;
};
struct cudaFuncAttributes {
  size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
  int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion;
};
struct cudaLaunchAttribute {
  int id;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned int numAttrs;
};

// These functions have C++ names, unlike the real ones, whose names stand in the symbol table as they are. A process
// may have loaded the real ones too (torch's are), and neither must be taken for the other.
#define LT_CUDA_API __attribute__((visibility("default")))

LT_CUDA_API cudaError_t cudaGetLastError();
LT_CUDA_API cudaError_t cudaPeekAtLastError();
LT_CUDA_API const char* cudaGetErrorName(cudaError_t error);
LT_CUDA_API const char* cudaGetErrorString(cudaError_t error);

LT_CUDA_API cudaError_t cudaGetDeviceCount(int* count);
LT_CUDA_API cudaError_t cudaGetDevice(int* device);
LT_CUDA_API cudaError_t cudaSetDevice(int device);
LT_CUDA_API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
LT_CUDA_API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
LT_CUDA_API cudaError_t cudaDriverGetVersion(int* version);
LT_CUDA_API cudaError_t cudaRuntimeGetVersion(int* version);
LT_CUDA_API cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device);
LT_CUDA_API cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int version,
                                                         unsigned long long flags,
                                                         cudaDriverEntryPointQueryResult* status = nullptr);

LT_CUDA_API cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
LT_CUDA_API cudaError_t cudaMalloc(void** memory, size_t bytes);
LT_CUDA_API cudaError_t cudaFree(void* memory);
LT_CUDA_API cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned int flags);
LT_CUDA_API cudaError_t cudaHostUnregister(void* memory);
LT_CUDA_API cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned int flags);
LT_CUDA_API cudaError_t cudaFreeHost(void* memory);
LT_CUDA_API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory);
LT_CUDA_API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                        cudaStream_t stream);
#if CUDART_VERSION >= 13000
LT_CUDA_API cudaError_t cudaMemPrefetchAsync(const void* memory, size_t bytes, cudaMemLocation location,
                                             unsigned int flags, cudaStream_t stream);
LT_CUDA_API cudaError_t cudaMemAdvise(const void* memory, size_t bytes, cudaMemoryAdvise advice,
                                      cudaMemLocation location);
#else
LT_CUDA_API cudaError_t cudaMemPrefetchAsync(const void* memory, size_t bytes, int device, cudaStream_t stream);
LT_CUDA_API cudaError_t cudaMemAdvise(const void* memory, size_t bytes, cudaMemoryAdvise advice, int device);
#endif

LT_CUDA_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags);
LT_CUDA_API cudaError_t cudaStreamDestroy(cudaStream_t stream);
LT_CUDA_API cudaError_t cudaStreamSynchronize(cudaStream_t stream);
LT_CUDA_API cudaError_t cudaStreamQuery(cudaStream_t stream);
LT_CUDA_API cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device);
LT_CUDA_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags);
LT_CUDA_API cudaError_t cudaEventQuery(cudaEvent_t event);
LT_CUDA_API cudaError_t cudaEventSynchronize(cudaEvent_t event);
LT_CUDA_API cudaError_t cudaEventDestroy(cudaEvent_t event);

LT_CUDA_API cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
LT_CUDA_API cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
LT_CUDA_API cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
LT_CUDA_API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode);
LT_CUDA_API cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream);
LT_CUDA_API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph);
LT_CUDA_API cudaError_t cudaGraphDestroy(cudaGraph_t graph);

// With default arguments, as in C++ programs.
LT_CUDA_API cudaError_t cudaMallocManaged(void** memory, size_t bytes, unsigned int flags = cudaMemAttachGlobal);
LT_CUDA_API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags = 0);
LT_CUDA_API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
LT_CUDA_API cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                             unsigned long long flags = 0);

#include "emulator/launch.h"
