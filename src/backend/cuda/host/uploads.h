// The upload buffers (kernels/upload_buffers.h) of one device, and the use of a buffer.
#pragma once

#include <memory>

#include "backend/cuda/host/events.h"
#include "backend/cuda/host/memory.h"
#include "backend/kernels/upload_buffers.h"

namespace lowtide::cuda_host {

struct UploadMemory {
  struct Buffer {
    HostMemory host;
    DeviceMemory device;
    size_t bytes = 0;
    Device::Event used;
  };

  const DeviceInfo& info;

  bool is_done(const Buffer& buffer) const {
    return !buffer.used || Events::is_done(Scope(info, "looking at an upload"), buffer.used);
  }
  void wait(Buffer& buffer) const {
    if (!is_done(buffer)) Events::wait(Scope(info, "waiting for an upload"), buffer.used);
    buffer.used = nullptr;
  }
  void wait_at_end(Buffer& buffer) const noexcept {
    if (buffer.used) quietly(info, [&] { return cudaEventSynchronize(Events::handle(buffer.used)); });
  }
  void allocate(Buffer& buffer, size_t bytes) const {
    const Scope scope(info, "allocating memory for uploads");
    buffer.host = HostMemory(info, static_cast<int64_t>(bytes));
    buffer.device = DeviceMemory(scope, bytes);
  }
};

using Uploads = kernels::UploadBuffers<UploadMemory>;

// Bytes on their way to the device, for work that is queued on the stream before this object is destroyed. The buffer
// becomes free when that work is done.
class Upload {
 public:
  // write(host, device) writes `bytes` bytes at `host`; `device` is their future address. `target` is device memory to
  // use instead of the buffer's. `room` is the number of bytes after them in the buffer, for results.
  template <class Write>
  Upload(const Scope& scope, Uploads& uploads, const std::shared_ptr<Events>& events, cudaStream_t stream, size_t bytes,
         Write&& write, std::byte* target = nullptr, size_t room = 0)
      : buffer_(uploads.acquire(bytes + room)),
        device_(target ? target : buffer_.device.data()),
        events_(events),
        stream_(stream) {
    write(buffer_.host.data(), device_);
    if (bytes) scope.check(cudaMemcpyAsync(device_, buffer_.host.data(), bytes, cudaMemcpyHostToDevice, stream));
  }
  ~Upload() {
    if (!ended_) buffer_.used = events_->record_at_end(stream_);
  }
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;

  // Ends the use before the destructor; later work must not use the bytes. Returns an event after their last use.
  const Device::Event& end(const Scope& scope) {
    buffer_.used = events_->record(scope, stream_);
    ended_ = true;
    return buffer_.used;
  }

  std::byte* device() const { return device_; }
  std::byte* host() const { return buffer_.host.data(); }
  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(device() + offset);
  }

 private:
  Uploads::Buffer& buffer_;
  std::byte* device_;
  const std::shared_ptr<Events>& events_;
  cudaStream_t stream_;
  bool ended_ = false;
};

}  // namespace lowtide::cuda_host
