// The services of a backend whose parameters are not in host memory: memory, transfers, and order between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace lowtide {

enum class MemoryKind {
  kDevice,  // the host must not touch it
  kPinned,  // host memory that transfers reach at full rate; kernels must not rely on it
  kShared,  // migrates between host and device; only one of them may touch it at a time
};

// Queues are the backend's (a sycl::queue*, a cudaStream_t): in order each, unordered among each other, and work on
// them is late. nullptr is the backend's own. Used by one thread at a time. Errors of work that was queued may come
// with any later call.
class Device {
 public:
  using Event = std::shared_ptr<void>;  // nullptr: has happened
  struct Limits {
    int64_t total = -1, free = -1, largest_allocation = -1;  // bytes of device memory; -1: not known
  };

  virtual ~Device() = default;
  virtual Limits limits() const = 0;
  // Aligned to 64 bytes at least, not initialized. Throws kOutOfMemory, naming the bytes; never nullptr.
  virtual void* allocate(MemoryKind kind, int64_t bytes) = 0;
  // Nothing that is queued may still use it.
  virtual void free(void* memory) noexcept = 0;

  // A queue of the device's own, alive as long as this object.
  virtual void* make_queue() = 0;
  // Between memory of any kind; the host's may be any.
  virtual void copy(void* queue, void* to, const void* from, int64_t bytes) = 0;
  // Sets `count` elements of 1 or 4 bytes each (the low bytes of `pattern`) of memory of any of the kinds. `to` is
  // aligned to pattern_bytes.
  virtual void fill(void* queue, void* to, uint32_t pattern, int pattern_bytes, int64_t count) = 0;
  // Asks for shared memory to be moved to the device.
  virtual void prefetch(void* queue, const void* shared, int64_t bytes) = 0;

  // All that is queued so far.
  virtual Event record(void* queue) = 0;
  // Work that is queued from here on runs after the event, which may be of another queue.
  virtual void wait(void* queue, const Event& event) = 0;
  virtual void host_wait(const Event& event) = 0;
  // True if it has happened; false where only waiting could tell.
  virtual bool has_happened(const Event& event) { return !event; }

  // True if steps may be given codes and scales in pinned memory: kernels then reach it over the link.
  virtual bool steps_pinned() const { return false; }
  // True if the driver moves shared memory page by page, as it is touched, so that prefetches help and the host may
  // touch it while kernels run. Else all of it moves before each kernel, whatever that uses.
  virtual bool pages_shared() const { return true; }
  // True if work queued there is recorded for later replays (a CUDA graph) instead of run.
  virtual bool is_capturing(void* /*queue*/) { return false; }
  // Its name and its driver's version, the key of remembered measurements; "": not known.
  virtual std::string describe() const { return ""; }
  // Set once the device can do nothing more in this process: every call throws kDeviceLost, and frees do nothing.
  virtual bool is_lost() const { return false; }

  // Takes device memory (kDevice) from elsewhere from now on: a framework's cache, so that it is seen, limited and
  // shared there. allocate returns nullptr if there is none. Throws kUnsupported.
  struct Allocator {
    void* context = nullptr;
    void* (*allocate)(void* context, int64_t bytes) = nullptr;
    void (*free)(void* context, void* memory) = nullptr;
  };
  virtual void use_allocator(const Allocator& allocator);
  // From now on the memory that its backend is given is taken to be the device's, and nobody asks.
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
