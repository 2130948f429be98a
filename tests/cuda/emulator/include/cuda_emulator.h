// Control of the emulated machine, for tests: its size, failures, order of work, and log.
// Environment variables set what a process starts with: LT_CUDA_EMULATOR_DEVICES, _MEMORY (bytes of each; K, M, G),
// _PIN_LIMIT, _PROCESSORS, _SEED, _DRIVER (13000; 0: none), and _STRICT=1: misuse ends the process with a message.
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <vector>

namespace cuda_emulator {

#define LT_CUDA_CONTROL __attribute__((visibility("default")))

struct Settings {
  int devices = 1;
  size_t memory = size_t{1} << 30;  // bytes of each device
  size_t pin_limit = SIZE_MAX;      // bytes of host memory that can be pinned
  size_t other_use = 0;             // bytes of each device that someone else has
  int processors = 4;               // of each device
  uint64_t seed = 1;
  int driver = CUDART_VERSION;  // version of CUDA that the driver knows; 0: there is none
  bool managed = true;          // concurrentManagedAccess
  bool registers = true;        // hostRegisterSupported
  bool reaches = true;          // canUseHostPointerForRegisteredMem
  // How kernels reach pageable host memory: not; as pages that migrate when they are touched (heterogeneous memory
  // management); or by the host's own page tables (address translation services).
  enum class Pageable { kNever, kMigrates, kHostTables } pageable = Pageable::kNever;
  bool strict = false;
};

// Begins anew: nothing is allocated, queued or lost. Handles and memory of before are no more.
LT_CUDA_CONTROL void reset(const Settings& settings);
LT_CUDA_CONTROL Settings settings();
// Changes what can change at any time: pin_limit, other_use, seed, strict, registers, reaches, pageable, managed, memory (of
// all devices).
LT_CUDA_CONTROL void change(const Settings& settings);

struct Injection {
  int64_t after = 0;  // calls that succeed before
  int64_t times = 1;
  cudaError_t error = cudaErrorUnknown;
};
// Lets calls of this function ("cudaMalloc") fail; "": of any that may fail. Launches are "cudaLaunchKernelEx". Errors
// that last (cudaErrorIllegalAddress) lose the device.
LT_CUDA_CONTROL void fail(const std::string& function, const Injection& injection);
LT_CUDA_CONTROL void forget_failures();
// Loses the device: nothing runs on it any more, and all calls say so.
LT_CUDA_CONTROL void lose_device(int device, cudaError_t error);

struct Counters {
  int64_t calls = 0, launches = 0, blocks = 0, copies = 0, bytes_to_device = 0, bytes_to_host = 0, bytes_within = 0;
  int64_t synchronizing = 0;  // calls that waited, or that always wait
  int64_t staged = 0;         // copies of pageable memory
  int64_t records = 0, waits = 0, allocations = 0, registrations = 0, graph_launches = 0;
};
LT_CUDA_CONTROL Counters counters();

// Memory that is allocated now.
struct Held {
  int64_t device_bytes = 0, managed_bytes = 0, registered_bytes = 0;
  int64_t allocations = 0, registrations = 0, host_allocations = 0;
  int64_t streams = 0, events = 0, graphs = 0, pending = 0;
};
LT_CUDA_CONTROL Held held();

// Misuse that CUDA would not report: memory written beyond its end, freed or unregistered while something queued uses
// it, freed twice; threads of a warp that do not meet.
LT_CUDA_CONTROL std::vector<std::string> take_misuses();
// Why the last launch failed.
LT_CUDA_CONTROL std::string last_failure();
// The end of the process: every call says cudaErrorCudartUnloading from here on.
LT_CUDA_CONTROL void unload();
// Whether there is a context on the device.
LT_CUDA_CONTROL bool has_context(int device);
// The last thousand operations, as they ran.
LT_CUDA_CONTROL std::vector<std::string> operations();
// Runs all that is queued, on all devices.
LT_CUDA_CONTROL void run_all();
// Checks the edges of all memory; a broken one is misuse.
LT_CUDA_CONTROL void check_edges();

}  // namespace cuda_emulator
