#include "backend/cuda/host/guards.h"

#include <algorithm>

#include "backend/kernels/items.h"

namespace lowtide::cuda_host {

std::unique_ptr<Answer> Answers::take() {
  const Scope scope(place_, "taking memory for a search");
  {
    const std::lock_guard lock(mutex_);
    const auto idle = std::find_if(free_.begin(), free_.end(), [&](const std::unique_ptr<Answer>& answer) {
      return Events::is_done(scope, answer->used) && Events::is_done(scope, answer->found);
    });
    if (idle != free_.end()) {
      std::unique_ptr<Answer> taken = std::move(*idle);
      free_.erase(idle);
      return taken;
    }
  }
  auto made = std::make_unique<Answer>();
  made->device = DeviceMemory(scope, sizeof(uint32_t));
  made->host = HostMemory(place_, sizeof(uint32_t));
  return made;
}

void Answers::give_back(std::unique_ptr<Answer> answer) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(answer));
  } catch (const std::bad_alloc&) {
    // Steps may still read it, and nothing is there to remember when they no longer do.
    static_cast<void>(answer.release());
  }
}

int64_t CudaGuard::first() {
  const Scope scope(place_, "waiting for the search for gradients that are not finite");
  Events::wait(scope, answer_->found);
  const uint32_t found = *answer_->copy();
  return found == kernels::kNoItem ? -1 : static_cast<int64_t>(found);
}

}  // namespace lowtide::cuda_host
