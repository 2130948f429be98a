// The services of a backend whose parameters are not in host memory: memory, transfers, and the order of work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace lowtide {

enum class MemoryKind {
  kDevice,  // the host must not touch it
  kPinned,  // host memory that transfers access at full rate; kernels may be unable to access it
  kShared,  // migrates between host and device; only one of them may touch it at a time
};

// Queues are of the backend's type (a sycl::queue*, a cudaStream_t). Work runs asynchronously; each queue is in order,
// and different queues are unordered. nullptr is the backend's own queue. One thread at a time uses it. Any later call
// may report errors of queued work.
class Device {
 public:
  using Event = std::shared_ptr<void>;  // nullptr: an event that has happened
  struct Limits {
    int64_t total = -1, free = -1, largest_allocation = -1;  // bytes of device memory; -1 if unknown
  };

  virtual ~Device() = default;
  virtual Limits limits() const = 0;
  // Returns uninitialized memory, aligned to at least 64 bytes. Throws kOutOfMemory, with the number of bytes in the
  // message; never returns nullptr.
  virtual void* allocate(MemoryKind kind, int64_t bytes) = 0;
  // Frees memory that no queued work still uses.
  virtual void free(void* memory) noexcept = 0;

  // Returns a new queue of the device, valid as long as this object.
  virtual void* make_queue() = 0;
  // Copies between memory of any kind; host memory need not be pinned.
  virtual void copy(void* queue, void* to, const void* from, int64_t bytes) = 0;
  // Sets `count` elements of 1 or 4 bytes each to the low bytes of `pattern`, in memory of any kind. `to` is aligned to
  // pattern_bytes.
  virtual void fill(void* queue, void* to, uint32_t pattern, int pattern_bytes, int64_t count) = 0;
  // Asks for shared memory to be moved to the device.
  virtual void prefetch(void* queue, const void* shared, int64_t bytes) = 0;

  // Returns an event that follows all work queued so far.
  virtual Event record(void* queue) = 0;
  // Makes work queued from now on run after the event, which may belong to another queue.
  virtual void wait(void* queue, const Event& event) = 0;
  virtual void host_wait(const Event& event) = 0;
  // Returns true if the event has happened, and false if it has not or if only waiting could tell.
  virtual bool has_happened(const Event& event) { return !event; }

  // Returns true if the codes and scales of steps may be in pinned memory, which kernels access over the link.
  virtual bool steps_pinned() const { return false; }
  // Returns true if the driver moves shared memory page by page on access, so that prefetches help and the host may use
  // the memory while kernels run. Otherwise all of it moves before each kernel, whatever the kernel uses.
  virtual bool pages_shared() const { return true; }
  // Returns true if work on the queue is recorded for later replays (a CUDA graph) instead of executed.
  virtual bool is_capturing(void* /*queue*/) { return false; }
  // Returns the device's name and its driver's version, under which measurements are remembered, or "" if unknown.
  virtual std::string describe() const { return ""; }
  // Returns true if the device is unusable in this process. Then every call throws kDeviceLost, and frees do nothing.
  virtual bool is_lost() const { return false; }

  // From now on, takes device memory (kDevice) from another source, such as a framework's cache, which then counts,
  // limits and shares it. `allocate` returns nullptr if it is out of memory. Throws kUnsupported.
  struct Allocator {
    void* context = nullptr;
    void* (*allocate)(void* context, int64_t bytes) = nullptr;
    void (*free)(void* context, void* memory) = nullptr;
    // Returns device memory or nullptr. If kernels would misread the memory, frees it and throws kInvalidArgument.
    void* take(int64_t bytes) const;
  };
  virtual void use_allocator(const Allocator& allocator);
  // From now on, assumes without checking that all memory passed to the backend is the device's.
  virtual void trust_memory() {}
};

struct FreeOnDevice {
  Device* device = nullptr;
  void operator()(std::byte* data) const noexcept { device->free(data); }
};

// Owns memory of a device, which must outlive this object.
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
