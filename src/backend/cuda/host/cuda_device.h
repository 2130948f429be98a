// Memory, transfers and order on one CUDA device. Queues are cudaStream_t; nullptr is the device's legacy default
// stream, on which work is in order with the caller's. Queues made here are ordered with other queues only by events.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>

#include "backend/cuda/host/events.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/host/device_info.h"
#include "backend/device.h"
#include "backend/kernels/pointer_check.h"

namespace lowtide::cuda_host {

class CudaDevice final : public Device {
 public:
  // `info` must outlive this object.
  CudaDevice(const DeviceInfo& info, std::shared_ptr<Events> events) : info_(info), events_(std::move(events)) {}
  ~CudaDevice() override;

  Limits limits() const override;
  void* allocate(MemoryKind kind, int64_t bytes) override;
  void free(void* memory) noexcept override;
  void* make_queue() override;
  void copy(void* queue, void* to, const void* from, int64_t bytes) override;
  void fill(void* queue, void* to, uint32_t pattern, int pattern_bytes, int64_t count) override;
  void prefetch(void* queue, const void* shared, int64_t bytes) override;
  Event record(void* queue) override;
  void wait(void* queue, const Event& event) override;
  void host_wait(const Event& event) override;
  bool has_happened(const Event& event) override;
  bool steps_pinned() const override { return info_.reaches_pinned || info_.reaches_all; }
  bool pages_shared() const override { return info_.concurrent_managed; }
  bool is_capturing(void* queue) override;
  std::string describe() const override;
  bool is_lost() const override;
  void use_allocator(const Allocator& allocator) override { allocator_ = allocator; }
  void trust_memory() override { trusts_memory_ = true; }

  // Throws kInvalidArgument for a stream of another device, if the runtime can tell.
  cudaStream_t queue_of(const Scope& scope, void* queue) const;
  // Returns true if this object allocated the memory at `data` and kernels can access it.
  bool owns(const void* data) const;
  bool trusts_memory() const { return trusts_memory_; }

 private:
  struct Block {
    MemoryKind kind;
    int64_t bytes;
    Allocator from;     // set if the memory is from an allocator
    HostMemory pinned;  // set if the memory is pinned
  };
  using Blocks = std::map<const std::byte*, Block, std::greater<>>;

  void* allocate_device(const Scope& scope, Block& block);
  void* allocate_managed(const Scope& scope, int64_t bytes);
  Blocks::const_iterator block_of(const void* data) const;
  // Returns the number of bytes from `data` on that a single copy may transfer.
  int64_t copyable(const void* data, int64_t bytes) const;

  const DeviceInfo& info_;
  std::shared_ptr<Events> events_;
  Allocator allocator_;
  Blocks blocks_;
  int64_t managed_bytes_ = 0;
  bool trusts_memory_ = false;
  std::deque<OwnStream> queues_;
  // The caller's queue that was last verified to be on this device, which usually is the same for all calls. After the
  // queue is destroyed, its handle may refer to another device's stream; CUDA refuses this device's work there.
  mutable cudaStream_t known_queue_ = nullptr;
};

// Checks that kernels can access memory: the device's own, managed memory, and pinned memory if the device can access
// it. A PointerCheck lives for one call, within a Scope. Its findings are then dropped, because the memory may be freed
// and its addresses reused for another kind before the next call.
class PointerCheck final : public kernels::PointerCheck {
 public:
  // The memory of `device` is known without asking CUDA. `info` and `device` must outlive this object.
  PointerCheck(const DeviceInfo& info, const CudaDevice& device)
      : kernels::PointerCheck(device.trusts_memory()), info_(info), device_(device) {}

 private:
  void check(const void* data, const char* what, size_t index) const override {
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

  const DeviceInfo& info_;
  const CudaDevice& device_;
  // CUDA maps a device's memory in granules. If one address is the device's, so is the whole granule, and a model's
  // tensors are in few granules. Holds granule numbers from 1, whose last bits are the index; 0 marks a free entry.
  static constexpr uintptr_t kGranule = uintptr_t{2} << 20;
  mutable std::array<uintptr_t, 256> known_{};
};

}  // namespace lowtide::cuda_host
