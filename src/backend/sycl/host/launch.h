// Queues kernels, in groups of kGroupSize work-items.
#pragma once

#include <sycl/sycl.hpp>

#include <algorithm>
#include <cstdint>

#include "backend/kernels/items.h"

namespace lowtide::sycl_host {

// Groups in which `items` work-items fit.
inline int64_t groups_for(int64_t items) { return (items + kernels::kGroupSize - 1) / kernels::kGroupSize; }

// Groups of a launch: enough for any device; each takes several of `blocks` if there are more.
template <class... Args>
sycl::event launch(sycl::queue& queue, const sycl::kernel& kernel, int64_t blocks, Args... args) {
  constexpr size_t kGroup = kernels::kGroupSize;
  const auto groups = static_cast<size_t>(std::min<int64_t>(blocks, 1 << 16));
  return queue.submit([&](sycl::handler& handler) {
    handler.set_args(args...);
    handler.parallel_for(sycl::nd_range<1>{groups * kGroup, kGroup}, kernel);
  });
}

}  // namespace lowtide::sycl_host
