#include "backend/cuda/host/guards.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "backend/gradient_limit.h"
#include "backend/kernels/items.h"

namespace lowtide::cuda_host {

std::shared_ptr<Answer> Answers::take() {
  return {take_idle().release(),
          [from = shared_from_this()](Answer* answer) { from->give_back(std::unique_ptr<Answer>(answer)); }};
}

std::unique_ptr<Answer> Answers::take_idle() {
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
    if (answer->open) {  // left by a call that failed half-way
      quietly(info_, [&] { return cudaStreamSynchronize(*answer->open); });
      answer->open.reset();
    }
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(answer));
  } catch (const std::bad_alloc&) {
    // Leak the answer, because queued steps may still read it and no memory is left to track them.
    static_cast<void>(answer.release());
  }
}

int64_t CudaGuard::found() const {
  const uint32_t found = *answer().copy();
  return found == kernels::kNoItem ? -1 : static_cast<int64_t>(found);
}

int64_t CudaGuard::first() {
  const Scope scope(info(), "waiting for the search for gradients that are not finite");
  Events::wait(scope, answer().found);
  return found();
}

kernels::Clip CudaClip::wait() {
  const Scope scope(info(), "waiting for the norm of gradients");
  Events::wait(scope, answer().found);
  return found();
}

kernels::Clip CudaClip::found() const {
  kernels::Clip clip;
  std::memcpy(&clip, answer().host.data(), sizeof clip);
  return clip;
}

RecordedItems::RecordedItems(const Scope& scope, kernels::Batch& batch, cudaStream_t side, size_t room)
    : bytes_(batch.bytes()), memory_(scope, std::max<size_t>(bytes_.size() + room, 1)) {
  batch.write(bytes_.data(), memory_.data());
  scope.check(cudaMemcpyAsync(memory_.data(), bytes_.data(), bytes_.size(), cudaMemcpyHostToDevice, side));
  scope.check(cudaStreamSynchronize(side));
}

kernels::Clip CudaRecordedClip::wait() {
  const Scope scope(info(), "waiting for a replay");
  LT_REQUIRE(items_.prepared, "got a clip that was recorded in a graph, wanted a replay of the graph first");
  items_.wait(scope, *events_);
  return found();
}

CudaRecordedGuard::CudaRecordedGuard(const Scope& scope, std::shared_ptr<Events> events, kernels::Batch& batch,
                                     cudaStream_t side, Clipping clipping)
    : CudaGuard(scope.info(), Answers::make(scope), std::move(clipping)),
      events_(std::move(events)),
      count_(static_cast<size_t>(batch.launches()[0].count)),
      items_(scope, batch, side) {}

int64_t CudaRecordedGuard::first() {
  const Scope scope(info(), "waiting for a replay");
  items_.wait(scope, *events_);
  return found();
}

void CudaRecordedGuard::prepare(const Scope& scope, std::span<const StepItem> items, Uploads& uploads,
                                cudaStream_t stream) {
  items_.prepared = stream;
  if (clipping().clip) static_cast<CudaRecordedClip&>(*clipping().clip).prepare(stream);
  std::vector<std::byte>& bytes = items_.bytes();
  std::unordered_map<const void*, float> scales;
  for (const StepItem& item : items)
    if (item.guard == this) scales.emplace(item.grad, item.grad_scale);
  bool changed = clipping().clip && count_;
  for (size_t i = 0; i < count_; ++i) {
    kernels::DeviceItem item;
    std::byte* const at = bytes.data() + i * sizeof item;
    std::memcpy(&item, at, sizeof item);
    const auto scale = scales.find(item.grad.data);
    if (scale == scales.end() || scale->second == item.grad_scale) continue;
    item.grad_scale = scale->second;
    item.limit_bits = gradient_limit_bits(scale->second);
    std::memcpy(at, &item, sizeof item);
    changed = true;
  }
  if (!changed) return;
  const auto write = [&](std::byte* host, std::byte*) { std::memcpy(host, bytes.data(), bytes.size()); };
  const Upload there(scope, uploads, events_, stream, bytes.size(), write, items_.device());
}

}  // namespace lowtide::cuda_host
