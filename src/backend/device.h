// The services of a backend whose parameters are not in host memory: memory, transfers, and their order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace lowtide {

enum class MemoryKind {
  kDevice,  // the host must not touch it
  kPinned,  // host memory that transfers access at full rate; kernels must not rely on it
  kShared,  // migrates between host and device; only one of them may touch it at a time
};

// Queues are the backend's (a sycl::queue*, a cudaStream_t): each is in order, different queues are unordered, and work
// runs asynchronously. nullptr is the backend's own queue. Used by one thread at a time. Errors of queued work may be
// reported by any later call.
class Device {
 public:
  using Event = std::shared_ptr<void>;  // nullptr: already over
  struct Limits {
    int64_t total = -1, free = -1, largest_allocation = -1;  // bytes of device memory; -1: unknown
  };

  virtual ~Device() = default;
  virtual Limits limits() const = 0;
  // Aligned to at least 64 bytes, not initialized. Throws kOutOfMemory, naming the bytes; never returns nullptr.
  virtual void* allocate(MemoryKind kind, int64_t bytes) = 0;
  // No queued work may still use it.
  virtual void free(void* memory) noexcept = 0;

  // A new queue of the device, valid as long as this object.
  virtual void* make_queue() = 0;
  // Copies between memory of any kind; host memory need not be pinned.
  virtual void copy(void* queue, void* to, const void* from, int64_t bytes) = 0;
  // Sets `count` elements of 1 or 4 bytes each (the low bytes of `pattern`) in memory of any kind. `to` is aligned to
  // pattern_bytes.
  virtual void fill(void* queue, void* to, uint32_t pattern, int pattern_bytes, int64_t count) = 0;
  // Requests that shared memory be moved to the device.
  virtual void prefetch(void* queue, const void* shared, int64_t bytes) = 0;

  // An event for all work queued so far.
  virtual Event record(void* queue) = 0;
  // Makes work queued from now on run after the event, which may belong to another queue.
  virtual void wait(void* queue, const Event& event) = 0;
  virtual void host_wait(const Event& event) = 0;
  // True if it is over; false if only waiting could tell.
  virtual bool has_happened(const Event& event) { return !event; }

  // True if steps may be given codes and scales in pinned memory, which kernels access over the link.
  virtual bool steps_pinned() const { return false; }
  // True if the driver moves shared memory page by page on access, so that prefetches help and the host may touch it
  // while kernels run. Else all of it moves before each kernel, whatever the kernel uses.
  virtual bool pages_shared() const { return true; }
  // True if work queued there is recorded for later replays (a CUDA graph) instead of executed.
  virtual bool is_capturing(void* /*queue*/) { return false; }
  // Its name and its driver's version, the key of remembered measurements; "": unknown.
  virtual std::string describe() const { return ""; }
  // True once the device is unusable in this process: every call throws kDeviceLost, and frees do nothing.
  virtual bool is_lost() const { return false; }

  // Takes further device memory (kDevice) from another source: a framework's cache, which then counts, limits and
  // shares it. allocate returns nullptr if out of memory. Throws kUnsupported.
  struct Allocator {
    void* context = nullptr;
    void* (*allocate)(void* context, int64_t bytes) = nullptr;
    void (*free)(void* context, void* memory) = nullptr;
    // Device memory, or nullptr. Throws kInvalidArgument, having freed it, for memory that kernels would misread.
    void* take(int64_t bytes) const;
  };
  virtual void use_allocator(const Allocator& allocator);
  // From now on, assumes without asking that all memory passed to its backend is the device's.
  virtual void trust_memory() {}
};

struct FreeOnDevice {
  Device* device = nullptr;
  void operator()(std::byte* data) const noexcept { device->free(data); }
};

// Owns memory of a device, which outlives it.
class DeviceBytes {
 public:
  DeviceBytes() = default;
  DeviceBytes(Device& device, MemoryKind kind, int64_t bytes)
      : data_(static_cast<std::byte*>(device.allocate(kind, bytes)), FreeOnDevice{&device}), bytes_(bytes) {}

  std::byte* data() const { return data_.get(); }
  int64_t bytes() const { return data_ ? bytes_ : 0; }

 private:
  std::unique_ptr<std::byte, FreeOnDevice> data_;
  int64_t bytes_ = 0;
};

}  // namespace lowtide
