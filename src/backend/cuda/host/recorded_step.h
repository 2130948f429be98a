// Launches steps, both at once and in a recording.
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

// Calls queue(launch, part) for each launch with work of a batch that is or will be at `device`. `tables` has an entry
// for each launch. `replay` is set for a recorded step.
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

// The parts of the backend that a recorded step uses. The backend must outlive the step.
struct RecordingParts {
  const DeviceInfo& info;
  CudaDevice& device;
  Uploads& uploads;
  const std::shared_ptr<Events>& events;
};

// A step in a CUDA graph. Its items are in its own device memory. Before each replay, prepare() rewrites them on the
// stream together with a new number; the kernels of a replay that finds no new number do nothing. prepare() waits for
// the last replay but one, so that the device has work while the host prepares more.
class CudaRecordedStep final : public RecordedStep {
 public:
  // `batch` holds the items, `ordered` or not; `tables` has an entry for each of its launches. Records the step on a
  // capturing stream, after the work of before(address of the batch on the device).
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
  // Waits for the stream on which the last replay was prepared, and returns the state after its work.
  cuda_kernels::ReplayState wait_for_state();
  cuda_kernels::ReplayState read_state(const Scope& scope);
  // Returns false if more replays were missed than reported so far. An older answer may have fewer.
  bool note_missed(uint32_t missed) { return std::exchange(missed_, std::max(missed_, missed)) >= missed; }
  // Throws the refusals of replays.h as far as they are known, and for the last replay only if it has ended.
  void check_replays(const Scope& scope);

  RecordingParts of_;
  kernels::Batch batch_;
  std::vector<kernels::Batch::Launch> launches_;
  bool ordered_;
  size_t bytes_;         // size of the batch
  DeviceMemory memory_;  // the batch, followed by a ReplayState
  HostMemory answers_;   // two ReplayStates: as last read, and before the last upload
  OwnStream side_;
  uint32_t prepared_ = 0, missed_ = 0;  // numbers of replays; missed_ counts those reported
  Device::Event answered_;              // after the last upload and the second answer
  bool looked_ = true;                  // whether the second answer has been read
  std::optional<cudaStream_t> last_;    // the stream of prepare(); a null handle is the default stream
};

}  // namespace lowtide::cuda_host
