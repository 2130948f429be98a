// Managed memory, whose calls CUDA 13 changed.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace lowtide::cuda_host {

#if CUDART_VERSION >= 13000
inline cudaMemLocation location_of(int ordinal) {
  cudaMemLocation location{};
  location.type = cudaMemLocationTypeDevice;
  location.id = ordinal;
  return location;
}
inline cudaError_t prefetch_managed(const void* data, size_t bytes, int ordinal, cudaStream_t stream) {
  return cudaMemPrefetchAsync(data, bytes, location_of(ordinal), 0, stream);
}
inline cudaError_t prefer_device(const void* data, size_t bytes, int ordinal) {
  return cudaMemAdvise(data, bytes, cudaMemAdviseSetPreferredLocation, location_of(ordinal));
}
#else
inline cudaError_t prefetch_managed(const void* data, size_t bytes, int ordinal, cudaStream_t stream) {
  return cudaMemPrefetchAsync(data, bytes, ordinal, stream);
}
inline cudaError_t prefer_device(const void* data, size_t bytes, int ordinal) {
  return cudaMemAdvise(data, bytes, cudaMemAdviseSetPreferredLocation, ordinal);
}
#endif

}  // namespace lowtide::cuda_host
