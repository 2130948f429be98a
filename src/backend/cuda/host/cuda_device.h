// Memory, transfers and order on one CUDA device. Queues are cudaStream_t; nullptr is the legacy default stream of the
// device, so that work there is in order with the caller's own. Queues that are made here are ordered with others by
// events only.
#pragma once

#include <cuda_runtime.h>

#include <deque>
#include <map>
#include <memory>

#include "backend/cuda/host/events.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/host/device_info.h"
#include "backend/device.h"

namespace lowtide::cuda_host {

class CudaDevice final : public Device {
 public:
  // info outlives this object.
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
  bool is_capturing(void* queue) override;
  std::string describe() const override;
  bool is_lost() const override;
  void use_allocator(const Allocator& allocator) override { allocator_ = allocator; }

  // Throws kInvalidArgument for a stream of another device, where the runtime can tell.
  cudaStream_t queue_of(const Scope& scope, void* queue) const;
  // Whether kernels can be given this memory, which was allocated here.
  bool owns(const void* data) const;

 private:
  struct Block {
    MemoryKind kind;
    int64_t bytes;
    Allocator from;     // of device memory that is not CUDA's own
    HostMemory pinned;  // of pinned memory
  };
  using Blocks = std::map<const std::byte*, Block, std::greater<>>;

  void* allocate_device(const Scope& scope, Block& block);
  void* allocate_managed(const Scope& scope, int64_t bytes);
  Blocks::const_iterator block_of(const void* data) const;
  // Bytes from `data` on that one copy may take.
  int64_t copyable(const void* data, int64_t bytes) const;

  const DeviceInfo& info_;
  std::shared_ptr<Events> events_;
  Allocator allocator_;
  Blocks blocks_;
  int64_t managed_bytes_ = 0;
  std::deque<OwnStream> queues_;
};

}  // namespace lowtide::cuda_host
