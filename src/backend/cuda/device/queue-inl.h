// Queues a kernel. Included in the namespace of a .cu file after device-inl.h.

// units: of work, of which a thread block takes `at_once` at a time. No units: nothing is queued.
template <class... Parameters>
inline cudaError_t queue_kernel(void (*kernel)(Parameters...), i64 units, i64 at_once, const Queue& queue,
                                std::type_identity_t<Parameters>... arguments) {
  if (units <= 0) return cudaSuccess;
  int resident = 1;
  if (const cudaError_t error =
          cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, cuda_kernels::kThreads, 0))
    return error;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(cuda_kernels::grid_for(units, at_once, queue.processors, resident));
  config.blockDim = dim3(cuda_kernels::kThreads);
  config.stream = queue.stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}
