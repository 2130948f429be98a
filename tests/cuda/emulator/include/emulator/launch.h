// Launches: a kernel and its arguments are kept until the stream comes to them.
#pragma once

#include <functional>
#include <string>
#include <tuple>
#include <utility>

namespace cuda_emulator {

// Why a launch failed; no reason: it did not.
struct Failure {
  cudaError_t error = cudaSuccess;
  std::string reason;
};

// A launch whose stream has come to it.
struct Grid {
  dim3 blocks, threads;
  uint64_t seed;
  // Bounds of the allocation that holds the address, of those that the device can reach; {0, 0}: none does.
  std::function<std::pair<uint64_t, uint64_t>(uint64_t address)> find_memory;
};

// run: of all blocks, by what executes them.
LT_CUDA_HOOK cudaError_t launch_grid(const cudaLaunchConfig_t* config, const void* kernel, size_t argument_bytes,
                                     std::function<Failure(const Grid&)> run);
// body: of one thread.
LT_CUDA_HOOK cudaError_t launch(const cudaLaunchConfig_t* config, const void* kernel, size_t argument_bytes,
                                std::function<void()> body);
LT_CUDA_HOOK cudaError_t attributes(cudaFuncAttributes* out, const void* kernel);
LT_CUDA_HOOK cudaError_t occupancy(int* blocks, const void* kernel, int block_threads, size_t dynamic_bytes);

}  // namespace cuda_emulator

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  return cuda_emulator::launch(config, reinterpret_cast<const void*>(kernel), (sizeof(Parameters) + ... + 0),
                               [kernel, values = std::tuple<std::decay_t<Parameters>...>(
                                            std::forward<Arguments>(arguments)...)] { std::apply(kernel, values); });
}
template <class Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* out, Kernel* kernel) {
  return cuda_emulator::attributes(out, reinterpret_cast<const void*>(kernel));
}
template <class Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel kernel, int block_threads,
                                                          size_t dynamic_bytes) {
  return cuda_emulator::occupancy(blocks, reinterpret_cast<const void*>(kernel), block_threads, dynamic_bytes);
}
