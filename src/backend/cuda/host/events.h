// Events are created once and reused. An event is returned when its last holder lets go: by then every queue that waits
// for it has recorded the wait.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <mutex>
#include <vector>

#include "backend/cuda/host/device_info.h"
#include "backend/device.h"

namespace lowtide::cuda_host {

// Any thread.
class Events : public std::enable_shared_from_this<Events> {
 public:
  explicit Events(const DeviceInfo& info) : info_(info) {}
  ~Events();
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  // An event for all work queued so far.
  Device::Event record(const Scope& scope, cudaStream_t stream);
  // The same for destructors: if no event can be created, waits instead and returns nullptr.
  Device::Event record_at_end(cudaStream_t stream) noexcept;

  static cudaEvent_t handle(const Device::Event& event) { return static_cast<cudaEvent_t>(event.get()); }
  // True once it has happened.
  static bool is_done(const Scope& scope, const Device::Event& event);
  static void wait(const Scope& scope, const Device::Event& event) {
    if (event) scope.check(cudaEventSynchronize(handle(event)));
  }

 private:
  DeviceInfo info_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

}  // namespace lowtide::cuda_host
