// Which memory kernels can be given: the device's own, managed, and pinned where the device reaches it.
#pragma once

#include "backend/cuda/host/cuda_device.h"
#include "backend/kernels/pointer_check.h"

namespace lowtide::cuda_host {

class PointerCheck final : public kernels::PointerCheck {
 public:
  // device: whose memory is known without asking CUDA. Both outlive this object.
  PointerCheck(const Place& place, const CudaDevice& device)
      : kernels::PointerCheck(false), place_(place), device_(device) {}

 private:
  void check(const void* data, const char* what, size_t index) const override;

  const Place& place_;
  const CudaDevice& device_;
};

}  // namespace lowtide::cuda_host
