#include "backend/cuda/host/pointers.h"

namespace lowtide::cuda_host {

void PointerCheck::check(const void* data, const char* what, size_t index) const {
  const uintptr_t granule = reinterpret_cast<uintptr_t>(data) / kGranule + 1;
  uintptr_t& known = known_[granule % known_.size()];
  if (known == granule || device_.owns(data)) return;
  cudaPointerAttributes found{};
  if (const cudaError_t code = cudaPointerGetAttributes(&found, data); code != cudaSuccess)
    Scope(info_, "looking at a pointer").check(code);
  constexpr const char* kWanted = "wanted device memory (cudaMalloc, a CUDA tensor)";
  switch (found.type) {
    case cudaMemoryTypeDevice:
      LT_REQUIRE(found.device == info_.ordinal,
                 "got %s of item %zu at %p, which is memory of CUDA device %d; %s of device %d", what, index, data,
                 found.device, kWanted, info_.ordinal);
      known = granule;
      return;
    case cudaMemoryTypeManaged:
      return;
    case cudaMemoryTypeHost:
      LT_REQUIRE(found.devicePointer == data,
                 "got %s of item %zu at %p, pinned host memory that device %d has at another address (%p); %s", what,
                 index, data, info_.ordinal, found.devicePointer, kWanted);
      return;
    default:
      LT_REQUIRE(info_.reaches_all, "got %s of item %zu at %p, which is pageable host memory; %s", what, index, data,
                 kWanted);
  }
}

}  // namespace lowtide::cuda_host
