// Queues a kernel. Included in the namespace of a .cu file after device-inl.h.

// Queues the kernel for `units` units of work, if any; a thread block takes `at_once` at a time.
template <class... Parameters>
inline cudaError_t queue_kernel(void (*kernel)(Parameters...), i64 units, i64 at_once, const Queue& queue,
                                std::type_identity_t<Parameters>... arguments) {
  if (units <= 0) return cudaSuccess;
  std::atomic<int>& known = cuda_kernels::resident_of(reinterpret_cast<const void*>(kernel), queue);
  int resident = known;
  if (resident == 0) {
    if (const cudaError_t error =
            cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, cuda_kernels::kThreads, 0))
      return error;
    known = resident;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(cuda_kernels::grid_for(units, at_once, queue.processors, resident));
  config.blockDim = dim3(cuda_kernels::kThreads);
  config.stream = queue.stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}
