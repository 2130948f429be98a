// The slots (kernels/slots.h) of one device, and one slot's use.
#pragma once

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "backend/cuda/host/device_memory.h"
#include "backend/cuda/host/events.h"
#include "backend/cuda/host/host_memory.h"
#include "backend/kernels/slots.h"

namespace lowtide::cuda_host {

struct UploadPlace {
  struct Slot {
    HostMemory host;
    DeviceMemory device;
    size_t bytes = 0;
    Device::Event used;
  };

  const Place& place;

  bool is_done(const Slot& slot) const {
    return !slot.used || Events::is_done(Scope(place, "looking at an upload"), slot.used);
  }
  void wait(Slot& slot) const {
    if (!is_done(slot)) Events::wait(Scope(place, "waiting for an upload"), slot.used);
    slot.used = nullptr;
  }
  void wait_at_end(Slot& slot) const noexcept {
    if (slot.used) quietly(place, [&] { return cudaEventSynchronize(Events::handle(slot.used)); });
  }
  void allocate(Slot& slot, size_t bytes) const {
    const Scope scope(place, "allocating memory for uploads");
    slot.host = HostMemory(place, static_cast<int64_t>(bytes));
    slot.device = DeviceMemory(scope, bytes);
  }
};

using Uploads = kernels::Slots<UploadPlace>;

// Bytes on their way to the device, and to what is queued on the stream until this object goes: then the slot is free
// as soon as all of that is done.
class Upload {
 public:
  // write(host, device): writes `bytes`; `device` is where they will be. target: other device memory than the slot's.
  // room: bytes behind them in the slot, for results.
  template <class Write>
  Upload(const Scope& scope, Uploads& uploads, const std::shared_ptr<Events>& events, cudaStream_t stream, size_t bytes,
         Write&& write, std::byte* target = nullptr, size_t room = 0)
      : slot_(uploads.acquire(bytes + room)),
        device_(target ? target : slot_.device.data()),
        events_(events),
        stream_(stream) {
    write(slot_.host.data(), device_);
    if (bytes) scope.check(cudaMemcpyAsync(device_, slot_.host.data(), bytes, cudaMemcpyHostToDevice, stream));
  }
  Upload(const Scope& scope, Uploads& uploads, const std::shared_ptr<Events>& events, cudaStream_t stream,
         const std::vector<std::byte>& bytes)
      : Upload(scope, uploads, events, stream, bytes.size(),
               [&](std::byte* host, std::byte*) { std::memcpy(host, bytes.data(), bytes.size()); }) {}
  ~Upload() { slot_.used = events_->record_at_end(stream_); }
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;

  std::byte* device() const { return device_; }
  std::byte* host() const { return slot_.host.data(); }
  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(device() + offset);
  }

 private:
  Uploads::Slot& slot_;
  std::byte* device_;
  const std::shared_ptr<Events>& events_;
  cudaStream_t stream_;
};

}  // namespace lowtide::cuda_host
