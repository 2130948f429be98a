// Signs on a CUDA device: what is queued for one item.
#pragma once

#include <memory>

#include "backend/cuda/device/launch.h"
#include "backend/cuda/host/uploads.h"
#include "backend/signs.h"

namespace lowtide::cuda_host {

// Where they are queued, and what carries their arguments there.
struct SignQueue {
  const Scope& scope;
  cuda_kernels::Queue queue;
  Uploads& uploads;
  const std::shared_ptr<Events>& events;
};

// Items are checked, and so are their pointers. tables: of the residual's codec.
void pack_signs(const SignQueue& on, const SignItem& item);
void unpack_signs(const SignQueue& on, const SignItem& item);
void vote_signs(const SignQueue& on, const VoteItem& item);
void count_signs(const SignQueue& on, const CountItem& item);
void feedback(const SignQueue& on, const FeedbackItem& item, const void* tables);

}  // namespace lowtide::cuda_host
