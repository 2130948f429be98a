// Memory, transfers and order on one SYCL device in one context. Queues are in-order sycl::queue* of that context.
#pragma once

#include <sycl/sycl.hpp>

#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>

#include "backend/device.h"
#include "backend/kernels/pointer_check.h"
#include "backend/sycl/host/errors.h"

namespace lowtide::sycl_host {

// Throws kInvalidArgument for a queue that is out of order.
void require_in_order(const sycl::queue& queue);

class SyclDevice final : public Device {
 public:
  // `own` is the queue for work without a caller's queue. `late` collects errors that the runtime reports later, which
  // host_wait() throws.
  SyclDevice(const sycl::queue& own, std::shared_ptr<LateErrors> late) : own_(own), late_(std::move(late)) {}

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
  void use_allocator(const Allocator& allocator) override { allocator_ = allocator; }

  // Returns the queue, or the own queue for nullptr. Throws kInvalidArgument for a queue that is out of order, or of
  // another context or device.
  sycl::queue& queue_of(void* queue);

 private:
  void* allocate_from(const Allocator& allocator, int64_t bytes);

  sycl::queue own_;
  std::shared_ptr<LateErrors> late_;
  std::deque<sycl::queue> queues_;
  Allocator allocator_;
  std::unordered_map<void*, Allocator> lent_;  // by the memory that came from it
};

// Checks that kernels can access memory. It must be USM of the queue's context, unless the device can address all
// memory of the process.
class PointerCheck final : public kernels::PointerCheck {
 public:
  // `any` says that the device can address all memory of the process.
  PointerCheck(const sycl::context& context, bool any) : kernels::PointerCheck(any), context_(context) {}
  PointerCheck(const sycl::context& context, const sycl::device& device)
      : PointerCheck(context, device.has(sycl::aspect::usm_system_allocations)) {}

 private:
  void check(const void* data, const char* what, size_t index) const override {
    if (sycl::get_pointer_type(data, context_) != sycl::usm::alloc::unknown) return;
    fail(ErrorKind::kInvalidArgument,
         "got %s of item %zu at %p, which is no memory of the queue's SYCL context; wanted USM (sycl::malloc_device, "
         "_host or _shared with that context): this device cannot address other memory",
         what, index, data);
  }

  sycl::context context_;
};

}  // namespace lowtide::sycl_host
