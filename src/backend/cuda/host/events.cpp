#include "backend/cuda/host/events.h"

namespace lowtide::cuda_host {

Events::~Events() {
  for (cudaEvent_t event : free_) quietly(info_, [&] { return cudaEventDestroy(event); });
}

Device::Event Events::record(const Scope& scope, cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      event = free_.back();
      free_.pop_back();
    } else {
      free_.reserve(free_.capacity() + 1);  // so that returning the event needs no memory
    }
  }
  if (!event) scope.check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  Device::Event owner(event, [pool = shared_from_this()](void* given) {
    const std::lock_guard lock(pool->mutex_);
    pool->free_.push_back(static_cast<cudaEvent_t>(given));
  });
  scope.check(cudaEventRecord(event, stream));
  return owner;
}

Device::Event Events::record_at_end(cudaStream_t stream) noexcept {
  try {
    const Scope scope(info_, "recording an event");
    try {
      return record(scope, stream);
    } catch (const std::exception&) {
      scope.check(cudaStreamSynchronize(stream));
    }
  } catch (const std::exception&) {  // a lost device no longer reads
  }
  return nullptr;
}

bool Events::is_done(const Scope& scope, const Device::Event& event) {
  if (!event) return true;
  const cudaError_t code = cudaEventQuery(handle(event));
  if (code != cudaErrorNotReady) scope.check(code);
  if (code == cudaErrorNotReady) cudaGetLastError();
  return code == cudaSuccess;
}

}  // namespace lowtide::cuda_host
