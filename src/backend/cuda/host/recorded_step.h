// Launches of steps, both immediate and recorded.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/device/launch.h"
#include "backend/cuda/host/events.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/host/cuda_device.h"
#include "backend/cuda/host/uploads.h"
#include "backend/kernels/batch.h"

namespace lowtide::cuda_host {

// Calls queue(launch, part) for the launches, if they have work, of a batch that is, or will be, at `device`. tables:
// for each launch. replay: for a recorded step.
template <class Queue>
void for_each_launch(const kernels::Batch& batch, std::byte* device, std::span<const void* const> tables, bool fast,
                     const cuda_kernels::ReplayState* replay, Queue&& queue) {
  size_t n = 0;
  for (const kernels::Batch::Launch& part : batch.launches()) {
    cuda_kernels::StepLaunch launch;
    launch.rule = part.rule, launch.codec = part.codec;
    launch.fast = fast, launch.ballot = part.ballot;
    launch.items = batch.items(device, part), launch.starts = batch.starts(device, part);
    launch.norms = batch.norms(device, part);
    launch.count = part.count, launch.tiles = part.units;
    launch.taken = batch.taken(device, part);
    launch.tables = tables[n++];
    launch.replay = replay;
    if (part.units) queue(launch, part);
  }
}

inline void queue_steps(const Scope& scope, const kernels::Batch& batch, std::byte* device,
                        std::span<const void* const> tables, bool fast, const cuda_kernels::ReplayState* replay,
                        const cuda_kernels::Queue& queue) {
  for_each_launch(batch, device, tables, fast, replay, [&](const cuda_kernels::StepLaunch& launch, const auto& part) {
    if (part.adds_norms) scope.check(cuda_kernels::add_norms(launch, queue));
    if (part.puts_norms) scope.check(cuda_kernels::put_norms(launch, queue));
    scope.check(cuda_kernels::step(launch, queue));
  });
}

// The parts of the backend that a recorded step uses. The backend outlives it.
struct RecordingParts {
  const DeviceInfo& info;
  CudaDevice& device;
  Uploads& uploads;
  const std::shared_ptr<Events>& events;
};

// A step in a CUDA graph. Its items are in its own device memory; before each replay they are rewritten, on the stream,
// together with a new number: kernels of a replay that finds no new number do nothing. Preparing waits for the replay
// before the last, so that the device has work while the host prepares more.
class CudaRecordedStep final : public RecordedStep {
 public:
  // batch: the items', ordered or not; tables: for each of its launches. Records on a capturing stream, behind the work
  // of before(batch on the device).
  CudaRecordedStep(const RecordingParts& of, const Scope& scope, kernels::Batch batch, bool ordered,
                   std::span<const void* const> tables, bool fast, cudaStream_t stream,
                   const std::function<void(std::byte*)>& before);
  ~CudaRecordedStep() override;

  void prepare(std::span<const StepItem> items, void* stream) override;
  bool all_prepared() override;
  bool was_replayed() override;

 private:
  cuda_kernels::ReplayState* state() const;
  cuda_kernels::ReplayState* answer(size_t i) const;
  // The state after the work queued where the last replay was prepared.
  cuda_kernels::ReplayState wait_for_state();
  cuda_kernels::ReplayState read_state(const Scope& scope);
  // false: more than reported so far. An older answer may have fewer.
  bool note_missed(uint32_t missed) { return std::exchange(missed_, std::max(missed_, missed)) >= missed; }
  // Refuses what replays.h says, as far as it is known: for the last replay, if nothing runs there any more.
  void check_replays(const Scope& scope);

  RecordingParts of_;
  kernels::Batch batch_;
  std::vector<kernels::Batch::Launch> launches_;
  bool ordered_;
  size_t bytes_;         // of the batch
  DeviceMemory memory_;  // the batch, and a ReplayState behind it
  HostMemory answers_;   // two of it: as last read, and as before the last upload
  OwnStream side_;
  uint32_t prepared_ = 0, missed_ = 0;  // numbers of replays; missed: those reported
  Device::Event answered_;              // behind the last upload, and the second answer
  bool looked_ = true;                  // whether it has been read
  std::optional<cudaStream_t> last_;    // where replays were prepared; a null handle is the default stream
};

}  // namespace lowtide::cuda_host
