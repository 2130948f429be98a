#include "backend/sycl/host/sycl_device.h"

#include "backend/sycl/host/errors.h"
#include "backend/sycl/host/kernels.h"
#include "core/buffer.h"

namespace lowtide::sycl_host {
namespace {

// A kind of memory in SYCL's terms and in words.
struct Kind {
  sycl::usm::alloc alloc;
  const char* name;
};
const Kind& kind_of(MemoryKind kind) {
  static constexpr Kind kKinds[] = {{sycl::usm::alloc::device, "device"},
                                    {sycl::usm::alloc::host, "pinned host"},
                                    {sycl::usm::alloc::shared, "shared"}};
  return kKinds[static_cast<size_t>(kind)];
}

// Asks the driver to keep the memory on the device. This is a hint; the memory works even if the driver ignores it.
void prefer_device(sycl::queue& queue, void* memory, int64_t bytes) {
  constexpr int kPreferredLocation = 1 << 3;  // UR_USM_ADVICE_FLAG_SET_PREFERRED_LOCATION of the unified runtime
  try {
    queue.mem_advise(memory, static_cast<size_t>(bytes), kPreferredLocation).wait();
  } catch (const sycl::exception&) {
  }
}

int64_t bytes_of(uint64_t bytes) { return static_cast<int64_t>(std::min<uint64_t>(bytes, INT64_MAX)); }

}  // namespace

void require_in_order(const sycl::queue& queue) {
  LT_REQUIRE(queue.is_in_order(),
             "got an out-of-order sycl::queue, wanted one made with sycl::property::queue::in_order");
}

Device::Limits SyclDevice::limits() const {
  return guarded("asking for the device's memory", [&] {
    const sycl::device device = own_.get_device();
    Limits limits;
    limits.total = bytes_of(device.get_info<sycl::info::device::global_mem_size>());
    limits.largest_allocation = bytes_of(device.get_info<sycl::info::device::max_mem_alloc_size>());
    if (device.has(sycl::aspect::ext_intel_free_memory))
      limits.free = bytes_of(device.get_info<sycl::ext::intel::info::device::free_memory>());
    return limits;
  });
}

// Checks the device's limits first, because beyond them runtimes return a null pointer, and some crash.
void* SyclDevice::allocate(MemoryKind kind, int64_t bytes) {
  const Limits most = limits();
  if (kind != MemoryKind::kPinned && bytes > most.largest_allocation)
    fail(ErrorKind::kOutOfMemory,
         "SYCL: got %lld bytes of %s memory to allocate, wanted %lld at most: the device's limit for one allocation",
         ll(bytes), kind_of(kind).name, ll(most.largest_allocation));
  if (kind == MemoryKind::kDevice && allocator_.allocate) return allocate_from(allocator_, bytes);
  return guarded("allocating memory", [&] {
    void* const memory = sycl::aligned_alloc(static_cast<size_t>(kPageBytes), static_cast<size_t>(bytes),
                                             own_.get_device(), own_.get_context(), kind_of(kind).alloc);
    if (!memory)
      fail(ErrorKind::kOutOfMemory, "SYCL: could not allocate %lld bytes of %s memory; the device has %lld", ll(bytes),
           kind_of(kind).name, ll(most.total));
    if (kind == MemoryKind::kShared) prefer_device(own_, memory, bytes);
    return memory;
  });
}

void* SyclDevice::allocate_from(const Allocator& allocator, int64_t bytes) {
  void* const memory = allocator.take(bytes);
  if (!memory)
    fail(ErrorKind::kOutOfMemory, "SYCL: could not allocate %lld bytes of device memory from the caller's allocator",
         ll(bytes));
  lent_.emplace(memory, allocator);
  return memory;
}

void SyclDevice::free(void* memory) noexcept {
  if (const auto lent = lent_.find(memory); lent != lent_.end()) {
    const Allocator from = lent->second;
    lent_.erase(lent);
    from.free(from.context, memory);
    return;
  }
  try {
    sycl::free(memory, own_.get_context());
  } catch (const sycl::exception&) {  // the device is lost, and so is its memory
  }
}

void* SyclDevice::make_queue() {
  return guarded("making a queue", [&] {
    return &queues_.emplace_back(own_.get_context(), own_.get_device(), handler_of(late_),
                                 sycl::property::queue::in_order());
  });
}

void SyclDevice::copy(void* queue, void* to, const void* from, int64_t bytes) {
  guarded("copying", [&] { queue_of(queue).memcpy(to, from, static_cast<size_t>(bytes)); });
}

// Uses our own kernel: drivers' fills are several times slower for 4-byte patterns, and some crash on shared memory.
void SyclDevice::fill(void* queue, void* to, uint32_t pattern, int pattern_bytes, int64_t count) {
  LT_REQUIRE(
      (pattern_bytes == 1 || pattern_bytes == 4) && (reinterpret_cast<uintptr_t>(to) & (pattern_bytes - 1u)) == 0,
      "got a pattern of %d bytes for memory at %p, wanted 1 byte, or 4 bytes and memory aligned to 4", pattern_bytes,
      to);
  guarded("filling", [&] {
    sycl::queue& on = queue_of(queue);
    if (count <= 0) return;
    const sycl::device device = own_.get_device();
    PointerCheck(own_.get_context(), device).one(to, "the memory to fill", 0);
    const sycl::kernel& kernel = kernels_of(own_.get_context(), device).find("fill", "fill");
    const uint32_t word = pattern_bytes == 4 ? pattern : (pattern & 0xff) * 0x01010101u;
    const int64_t bytes = count * pattern_bytes;
    launch(on, kernel, groups_for(bytes / 4 + 1), static_cast<unsigned char*>(to), word, bytes);
  });
}

void SyclDevice::prefetch(void* queue, const void* shared, int64_t bytes) {
  guarded("prefetching", [&] { queue_of(queue).prefetch(shared, static_cast<size_t>(bytes)); });
}

Device::Event SyclDevice::record(void* queue) {
  return guarded("recording an event",
                 [&] { return std::make_shared<sycl::event>(queue_of(queue).ext_oneapi_submit_barrier()); });
}

void SyclDevice::wait(void* queue, const Event& event) {
  guarded("waiting for an event", [&] {
    sycl::queue& on = queue_of(queue);  // refuses a wrong queue even if there is nothing to wait for
    if (event) on.ext_oneapi_submit_barrier({*static_cast<sycl::event*>(event.get())});
  });
}

void SyclDevice::host_wait(const Event& event) {
  if (!event) return;
  guarded("waiting for the device", [&] {
    static_cast<sycl::event*>(event.get())->wait_and_throw();
    late_->throw_any();
  });
}

sycl::queue& SyclDevice::queue_of(void* queue) {
  if (!queue) return own_;
  auto& given = *static_cast<sycl::queue*>(queue);
  require_in_order(given);
  LT_REQUIRE(
      given.get_context() == own_.get_context() && given.get_device() == own_.get_device(),
      "got a sycl::queue of another device or context than the optimizer's, whose state it could not reach; make "
      "the optimizer with a queue of this one");
  return given;
}

}  // namespace lowtide::sycl_host
