// Dispatches steps by rule, counts replays, and tells whether this build has code for the device.
#include <map>
#include <mutex>
#include <utility>

#include "backend/cuda/device/prelude.inc"

static __global__ void finish_replay_kernel(cuda_kernels::ReplayState* replay) {
  if (replay->prepared == replay->done) ++replay->missed;
  replay->done = replay->prepared;
}

}  // namespace lowtide::LT_CUDA_NAMESPACE

namespace lowtide::cuda_kernels {
cudaError_t step(const StepLaunch& launch, const Queue& queue) {
  const bool fast = launch.fast && !launch.ballot;
  switch (launch.rule) {
#define LT_RULE(number, name, R) \
  case number:                   \
    return fast ? step_fast_##name(launch, queue) : step_##name(launch, queue);
#include "portable/rules.def"
#undef LT_RULE
  }
  return cudaErrorInvalidValue;
}

std::atomic<int>& resident_of(const void* kernel, const Queue& queue) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, std::atomic<int>> all;
  const std::lock_guard lock(mutex);
  return all[{kernel, queue.device}];
}

cudaError_t finish_replay(ReplayState* replay, const Queue& queue) {
  cudaLaunchConfig_t config{};
  config.gridDim = config.blockDim = dim3(1);
  config.stream = queue.stream;
  return cudaLaunchKernelEx(&config, cuda_device::finish_replay_kernel, replay);
}

bool has_code() {
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, cuda_device::finish_replay_kernel) == cudaSuccess) return true;
  cudaGetLastError();  // the result reports the error
  return false;
}

}  // namespace lowtide::cuda_kernels
