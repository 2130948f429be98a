// Which memory kernels can be given: the device's own, managed, and pinned where the device reaches it.
#pragma once

#include <array>
#include <cstdint>

#include "backend/cuda/host/cuda_device.h"
#include "backend/kernels/pointer_check.h"

namespace lowtide::cuda_host {

// Lives for one call, within a Scope: what it has found out is forgotten with it.
class PointerCheck final : public kernels::PointerCheck {
 public:
  // device: whose memory is known without asking CUDA. Both outlive this object.
  PointerCheck(const DeviceInfo& info, const CudaDevice& device)
      : kernels::PointerCheck(false), info_(info), device_(device) {}

 private:
  void check(const void* data, const char* what, size_t index) const override;

  const DeviceInfo& info_;
  const CudaDevice& device_;
  // CUDA maps a device's memory in granules: where one address is the device's, all of the granule is, and a model's
  // tensors share few. By the granule's number, from 1, its last bits the position; 0: none.
  static constexpr uintptr_t kGranule = uintptr_t{2} << 20;
  mutable std::array<uintptr_t, 256> known_{};
};

}  // namespace lowtide::cuda_host
