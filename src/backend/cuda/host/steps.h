// Launches of steps, for those that run at once and those that are recorded.
#pragma once

#include <span>
#include <vector>

#include "backend/cuda/device/launch.h"
#include "backend/cuda/host/device_info.h"
#include "backend/kernels/batch.h"

namespace lowtide::cuda_host {

inline constexpr kernels::Batch::Shape kStepShape{.by_pair = true, .unit_blocks = cuda_kernels::kTileBlocks};

// Queues the launches of a batch that is, or will be, at `device`. tables: for each launch. replay: of a recorded step.
inline void queue_steps(const Scope& scope, const kernels::Batch& batch, const std::byte* device,
                        std::span<const void* const> tables, bool fast, const cuda_kernels::ReplayState* replay,
                        const cuda_kernels::Queue& queue) {
  size_t n = 0;
  for (const kernels::Batch::Launch& part : batch.launches()) {
    cuda_kernels::StepLaunch launch;
    launch.rule = part.rule, launch.codec = part.codec;
    launch.pair = part.pair;
    launch.fast = fast, launch.ballot = part.ballot, launch.stochastic = part.stochastic;
    launch.items = batch.items(device, part), launch.starts = batch.starts(device, part);
    launch.count = part.count, launch.tiles = part.units;
    launch.tables = tables[n++];
    launch.replay = replay;
    if (part.units) scope.check(cuda_kernels::step(launch, queue));
  }
}

}  // namespace lowtide::cuda_host
