#include "backend/cuda/host/guards.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "backend/gradient_limit.h"
#include "backend/kernels/items.h"

namespace lowtide::cuda_host {

std::unique_ptr<Answer> Answers::take() {
  const Scope scope(info_, "taking memory for a search");
  {
    const std::lock_guard lock(mutex_);
    const auto idle = std::find_if(free_.begin(), free_.end(), [&](const std::unique_ptr<Answer>& answer) {
      return Events::is_done(scope, answer->used) && Events::is_done(scope, answer->found);
    });
    if (idle != free_.end()) {
      std::unique_ptr<Answer> taken = std::move(*idle);
      free_.erase(idle);
      taken->used = nullptr;
      return taken;
    }
  }
  return make(scope);
}

std::unique_ptr<Answer> Answers::make(const Scope& scope) {
  auto made = std::make_unique<Answer>();
  made->device = DeviceMemory(scope, Answer::kBytes);
  made->host = HostMemory(scope.info(), Answer::kBytes);
  *made->copy() = kernels::kNoItem;
  return made;
}

void Answers::give_back(std::unique_ptr<Answer> answer) noexcept {
  try {
    if (answer->open) {  // of a call that failed half way
      quietly(info_, [&] { return cudaStreamSynchronize(*answer->open); });
      answer->open.reset();
    }
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(answer));
  } catch (const std::bad_alloc&) {
    // Queued steps may still read it and no memory is left to track them: leak it.
    static_cast<void>(answer.release());
  }
}

int64_t CudaGuard::found() const {
  const uint32_t found = *answer_->copy();
  return found == kernels::kNoItem ? -1 : static_cast<int64_t>(found);
}

int64_t CudaGuard::first() {
  const Scope scope(info_, "waiting for the search for gradients that are not finite");
  Events::wait(scope, answer_->found);
  return found();
}

kernels::Clip CudaClip::wait() {
  const Scope scope(info_, "waiting for the norm of gradients");
  Events::wait(scope, answer_->found);
  kernels::Clip clip;
  std::memcpy(&clip, answer_->host.data(), sizeof clip);
  return clip;
}

CudaRecordedGuard::CudaRecordedGuard(const Scope& scope, std::unique_ptr<Answer> answer, std::shared_ptr<Events> events,
                                     kernels::Batch& batch, cudaStream_t side)
    : CudaGuard(scope.info(), nullptr, std::move(answer)),
      events_(std::move(events)),
      bytes_(batch.bytes()),
      count_(static_cast<size_t>(batch.launches()[0].count)),
      memory_(scope, std::max<size_t>(bytes_.size(), 1)) {
  batch.write(bytes_.data(), memory_.data());
  scope.check(cudaMemcpyAsync(memory_.data(), bytes_.data(), bytes_.size(), cudaMemcpyHostToDevice, side));
  scope.check(cudaStreamSynchronize(side));
}

int64_t CudaRecordedGuard::first() {
  const Scope scope(info(), "waiting for a replay");
  if (last_) Events::wait(scope, events_->record(scope, *last_));
  return found();
}

void CudaRecordedGuard::prepare(const Scope& scope, std::span<const StepItem> items, Uploads& uploads,
                                cudaStream_t stream) {
  last_ = stream;
  std::unordered_map<const void*, float> scales;
  for (const StepItem& item : items)
    if (item.guard == this) scales.emplace(item.grad, item.grad_scale);
  bool changed = false;
  for (size_t i = 0; i < count_; ++i) {
    kernels::DeviceItem item;
    std::byte* const at = bytes_.data() + i * sizeof item;
    std::memcpy(&item, at, sizeof item);
    const auto scale = scales.find(item.grad.data);
    if (scale == scales.end() || scale->second == item.grad_scale) continue;
    item.grad_scale = scale->second;
    item.limit_bits = gradient_limit_bits(scale->second);
    std::memcpy(at, &item, sizeof item);
    changed = true;
  }
  if (!changed) return;
  const auto write = [&](std::byte* host, std::byte*) { std::memcpy(host, bytes_.data(), bytes_.size()); };
  const Upload there(scope, uploads, events_, stream, bytes_.size(), write, memory_.data());
}

}  // namespace lowtide::cuda_host
