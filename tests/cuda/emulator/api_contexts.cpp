// The driver's functions for contexts. Semantics: CUDA, Driver API, "Primary Context Management" (one for each device,
// shared with the runtime) and "Context Management" (a stack of contexts for each thread of the host).
#include <cudaTypedefs.h>

#include <cstring>

#include "machine.h"

using namespace cuda_emulator;

namespace {

CUcontext context_of(int device) {
  return reinterpret_cast<CUcontext>(uintptr_t{0x7d0000000000} + 64 * static_cast<uintptr_t>(device));
}
int device_of(CUcontext context) {
  return static_cast<int>((reinterpret_cast<uintptr_t>(context) - 0x7d0000000000) / 64);
}

// The driver's number of a device: nothing says that it is the ordinal.
constexpr CUdevice kFirstDevice = 40;

// Errors of the driver have the numbers of the runtime's.
template <class Act>
CUresult of_driver(const char* name, unsigned kind, Act&& act) {
  return static_cast<CUresult>(call(name, kOfDriver | kWithoutContext | kind, std::forward<Act>(act)));
}

CUresult get_device(CUdevice* device, int ordinal) {
  return of_driver("cuDeviceGet", kPlain, [&](Machine& machine) {
    if (ordinal < 0 || ordinal >= std::ssize(machine.devices)) return cudaErrorInvalidDevice;
    *device = kFirstDevice + ordinal;
    return cudaSuccess;
  });
}

CUresult retain(CUcontext* context, CUdevice number) {
  return of_driver("cuDevicePrimaryCtxRetain", kPlain, [&](Machine& machine) {
    const int device = number - kFirstDevice;
    if (device < 0 || device >= std::ssize(machine.devices)) return cudaErrorInvalidDevice;
    machine.devices[static_cast<size_t>(device)]->has_context = true;
    *context = context_of(device);
    return cudaSuccess;
  });
}

CUresult push(CUcontext context) {
  return of_driver("cuCtxPushCurrent", kPlain, [&](Machine& machine) {
    const int device = device_of(context);
    if (device < 0 || device >= std::ssize(machine.devices) ||
        !machine.devices[static_cast<size_t>(device)]->has_context)
      return cudaErrorDeviceUninitialized;
    host_thread().push(device);
    return cudaSuccess;
  });
}

CUresult pop(CUcontext* context) {
  return of_driver("cuCtxPopCurrent", kAlways, [&](Machine&) {
    HostThread& thread = host_thread();
    if (!thread.depth) return cudaErrorDeviceUninitialized;
    if (context) *context = context_of(thread.present());
    --thread.depth;
    return cudaSuccess;
  });
}

CUresult current(CUcontext* context) {
  return of_driver("cuCtxGetCurrent", kPlain, [&](Machine&) {
    const HostThread& thread = host_thread();
    *context = thread.depth ? context_of(thread.present()) : nullptr;
    return cudaSuccess;
  });
}

CUresult current_device(CUdevice* device) {
  return of_driver("cuCtxGetDevice", kPlain, [&](Machine&) {
    const HostThread& thread = host_thread();
    if (!thread.depth) return cudaErrorDeviceUninitialized;
    *device = kFirstDevice + thread.present();
    return cudaSuccess;
  });
}

struct Entry {
  const char* name;
  unsigned int since;  // version of CUDA
  void* function;
};
const Entry kEntries[] = {{"cuDeviceGet", 2000, reinterpret_cast<void*>(get_device)},
                          {"cuDevicePrimaryCtxRetain", 7000, reinterpret_cast<void*>(retain)},
                          {"cuCtxPushCurrent", 4000, reinterpret_cast<void*>(push)},
                          {"cuCtxPopCurrent", 4000, reinterpret_cast<void*>(pop)},
                          {"cuCtxGetCurrent", 4000, reinterpret_cast<void*>(current)},
                          {"cuCtxGetDevice", 2000, reinterpret_cast<void*>(current_device)}};

}  // namespace

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int version,
                                             unsigned long long flags, cudaDriverEntryPointQueryResult* status) {
  return call("cudaGetDriverEntryPointByVersion", kWithoutContext, [&](Machine& machine) {
    if (!symbol || !function || flags > 2 || version > static_cast<unsigned int>(machine.settings.driver))
      return cudaErrorInvalidValue;
    *function = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    for (const Entry& entry : kEntries) {
      if (std::strcmp(entry.name, symbol) != 0) continue;
      result = version < entry.since ? cudaDriverEntryPointVersionNotSufficent : cudaDriverEntryPointSuccess;
      if (version >= entry.since) *function = entry.function;
    }
    if (status) *status = result;
    return cudaSuccess;
  });
}
