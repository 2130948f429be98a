// Devices, versions and errors.
#include <cstdio>

#include "machine.h"

using namespace cuda_emulator;

namespace {

bool exists(Machine& machine, int device) { return device >= 0 && device < std::ssize(machine.devices); }

int attribute(const Settings& settings, cudaDeviceAttr which, bool& known) {
  known = true;
  switch (which) {
    case cudaDevAttrMaxThreadsPerBlock:
      return 1024;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return 48 << 10;
    case cudaDevAttrWarpSize:
      return warpSize;
    case cudaDevAttrMultiProcessorCount:
      return settings.processors;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      return 2048;
    case cudaDevAttrAsyncEngineCount:
      return 3;
    case cudaDevAttrComputeCapabilityMajor:
      return 9;
    case cudaDevAttrComputeCapabilityMinor:
      return 0;
    case cudaDevAttrHostNumaId:
      return 0;
    case cudaDevAttrIntegrated:
      return 0;
    case cudaDevAttrPageableMemoryAccess:
      return settings.pageable != Settings::Pageable::kNever;
    case cudaDevAttrPageableMemoryAccessUsesHostPageTables:
      return settings.pageable == Settings::Pageable::kHostTables;
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrManagedMemory:
      return 1;
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
      return settings.reaches;
    case cudaDevAttrHostRegisterSupported:
      return settings.registers;
    case cudaDevAttrConcurrentManagedAccess:
      return settings.managed;
  }
  known = false;
  return 0;
}

}  // namespace

cudaError_t cudaPeekAtLastError() {
  const Call held("cudaPeekAtLastError", kAlways);
  const HostThread& thread = host_thread();
  const cudaError_t lost = exists(held.machine, thread.present()) ? held.machine.present().lost : cudaSuccess;
  return lost == cudaSuccess ? thread.error : lost;
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  host_thread().error = cudaSuccess;
  return error;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define LT_NAME(name, number, text) \
  case number:                      \
    return "cuda" #name;
    LT_CUDA_ERRORS(LT_NAME)
#undef LT_NAME
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
#define LT_TEXT(name, number, text) \
  case number:                      \
    return text;
    LT_CUDA_ERRORS(LT_TEXT)
#undef LT_TEXT
  }
  return "unrecognized error code";
}

// Works on a lost device, as the functions below that are not of a device.
cudaError_t cudaGetDeviceCount(int* count) {
  return call("cudaGetDeviceCount", kAlways, [&](Machine& machine) {
    if (!count) return cudaErrorInvalidValue;
    *count = 0;
    if (machine.settings.driver < CUDART_VERSION / 1000 * 1000) return cudaErrorInsufficientDriver;
    *count = static_cast<int>(machine.devices.size());
    return *count ? cudaSuccess : cudaErrorNoDevice;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return call("cudaGetDevice", kWithoutContext, [&](Machine&) {
    if (!device) return cudaErrorInvalidValue;
    *device = host_thread().present();
    return cudaSuccess;
  });
}

// CUDA 12 and newer: the primary context is made at once, and takes the place of the current one.
cudaError_t cudaSetDevice(int device) {
  return call("cudaSetDevice", kAlways, [&](Machine& machine) {
    if (machine.settings.driver < CUDART_VERSION / 1000 * 1000) return cudaErrorInsufficientDriver;
    if (machine.devices.empty()) return cudaErrorNoDevice;
    if (!exists(machine, device)) return cudaErrorInvalidDevice;
    HostThread& thread = host_thread();
    if (!thread.depth) thread.push(device);
    thread.device = thread.contexts[thread.depth - 1] = device;
    machine.present().has_context = true;
    return machine.devices[static_cast<size_t>(device)]->lost;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  return call("cudaDeviceGetAttribute", kWithoutContext, [&](Machine& machine) {
    if (!exists(machine, device)) return cudaErrorInvalidDevice;
    bool known = false;
    if (value) *value = attribute(machine.settings, which, known);
    return known ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int device) {
  return call("cudaGetDeviceProperties", kWithoutContext, [&](Machine& machine) {
    if (!exists(machine, device)) return cudaErrorInvalidDevice;
    if (!out) return cudaErrorInvalidValue;
    *out = {"Emulated device", machine.devices[static_cast<size_t>(device)]->arena.capacity(), 9, 0,
            machine.settings.processors};
    return cudaSuccess;
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  return call("cudaDriverGetVersion", kAlways, [&](Machine& machine) {
    if (!version) return cudaErrorInvalidValue;
    *version = machine.settings.driver;
    return cudaSuccess;
  });
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  return call("cudaRuntimeGetVersion", kAlways, [&](Machine&) {
    if (!version) return cudaErrorInvalidValue;
    *version = CUDART_VERSION;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  return call("cudaDeviceGetPCIBusId", kWithoutContext, [&](Machine& machine) {
    if (!exists(machine, device)) return cudaErrorInvalidDevice;
    if (!id || length < 13) return cudaErrorInvalidValue;
    std::snprintf(id, static_cast<size_t>(length), "0000:%02x:00.0", device + 1);
    return cudaSuccess;
  });
}
