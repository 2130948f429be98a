// Creates events once and reuses them. An event is returned when its last holder releases it; by then every queue that
// waits for the event has recorded the wait.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <mutex>
#include <vector>

#include "backend/cuda/host/device_info.h"
#include "backend/device.h"

namespace lowtide::cuda_host {

// May be used by any thread.
class Events : public std::enable_shared_from_this<Events> {
 public:
  explicit Events(const DeviceInfo& info) : info_(info) {}
  ~Events();
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  // Returns an event that follows all work queued so far.
  Device::Event record(const Scope& scope, cudaStream_t stream);
  // Records an event in a destructor: if no event can be created, waits for the work instead and returns nullptr.
  Device::Event record_at_end(cudaStream_t stream) noexcept;

  static cudaEvent_t handle(const Device::Event& event) { return static_cast<cudaEvent_t>(event.get()); }
  // Returns true if the event has happened.
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
