// Events are made once and used again. An event is given back when the last that holds it lets go: what waits for it on
// a queue has taken note of it by then.
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

  // All that is queued so far.
  Device::Event record(const Scope& scope, cudaStream_t stream);
  // The same for destructors: if there is no event to be had, waits instead; nullptr.
  Device::Event record_at_end(cudaStream_t stream) noexcept;

  static cudaEvent_t handle(const Device::Event& event) { return static_cast<cudaEvent_t>(event.get()); }
  // Whether it has happened.
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
