// Queued checks for non-finite gradients (Guard), queued clips, and the memory for their results.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "backend/gradient_reader.h"
#include "backend/cuda/host/events.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/host/uploads.h"
#include "backend/kernels/batch.h"

namespace lowtide::cuda_host {

// Memory for one result, on the device and on the host. It is kept for the next guard.
struct Answer {
  static constexpr size_t kBytes = sizeof(kernels::Clip);  // or of the number from a check

  DeviceMemory device;
  HostMemory host;
  Device::Event found;               // event after the copy to the host
  Device::Event used;                // event after all steps that read the device's copy
  std::optional<cudaStream_t> open;  // stream of the work that writes the result, until `found` is set
  bool searched = false;             // the device's copy, and after `found` the host's, is the result of a check

  uint32_t* word() const { return reinterpret_cast<uint32_t*>(device.data()); }
  uint32_t* copy() const { return reinterpret_cast<uint32_t*>(host.data()); }
  kernels::Clip* clip() const { return reinterpret_cast<kernels::Clip*>(device.data()); }
  void copy_to_host(const Scope& scope, cudaStream_t stream, size_t bytes = sizeof(uint32_t)) const {
    scope.check(cudaMemcpyAsync(host.data(), device.data(), bytes, cudaMemcpyDeviceToHost, stream));
  }
};

// May be used by any thread.
class Answers : public std::enable_shared_from_this<Answers> {
 public:
  explicit Answers(const DeviceInfo& info) : info_(info) {}

  // Returns an answer without readers, which returns to the pool when its last owner releases it.
  std::shared_ptr<Answer> take();
  static std::unique_ptr<Answer> make(const Scope& scope);

 private:
  std::unique_ptr<Answer> take_idle();
  void give_back(std::unique_ptr<Answer> answer) noexcept;

  DeviceInfo info_;
  std::mutex mutex_;
  std::list<std::unique_ptr<Answer>> free_;
};

class CudaClip : public QueuedClip {
 public:
  CudaClip(const DeviceInfo& info, std::shared_ptr<Answer> answer) : info_(info), answer_(std::move(answer)) {}

  kernels::Clip wait() override;
  Answer& answer() const { return *answer_; }

 protected:
  const DeviceInfo& info() const { return info_; }
  // Returns the result that has reached the host.
  kernels::Clip found() const;

 private:
  DeviceInfo info_;
  std::shared_ptr<Answer> answer_;
};

// `clip` is nullptr or the clip of the guard's steps, applied with `scale`. With `searches`, the guard checks
// gradients.
struct Clipping {
  std::shared_ptr<CudaClip> clip;
  double scale = 1;
  bool searches = true;
};

class CudaGuard : public Guard {
 public:
  CudaGuard(const DeviceInfo& info, std::shared_ptr<Answer> answer, Clipping clipping = {})
      : info_(info), answer_(std::move(answer)), clipping_(std::move(clipping)) {}

  int64_t first() override;
  const uint32_t* word() const override { return clipping_.searches ? answer().word() : nullptr; }
  Answer& answer() const { return *answer_; }
  const Clipping& clipping() const { return clipping_; }

 protected:
  // Returns the result that has reached the host.
  int64_t found() const;
  const DeviceInfo& info() const { return info_; }

 private:
  DeviceInfo info_;
  std::shared_ptr<Answer> answer_;
  Clipping clipping_;
};

// Items of a batch on the device, for kernels in a CUDA graph. They must live as long as the graph is replayed.
class RecordedItems {
 public:
  // Copies the items to the device on `side`. `room` is the number of bytes to allocate after them.
  RecordedItems(const Scope& scope, kernels::Batch& batch, cudaStream_t side, size_t room = 0);

  // Returns the address of the items for kernels.
  std::byte* device() const { return memory_.data(); }
  std::vector<std::byte>& bytes() { return bytes_; }  // as they were copied to the device
  // The stream on which replays were last prepared; a null handle is the default stream.
  std::optional<cudaStream_t> prepared;
  // Waits for the last prepared replay.
  void wait(const Scope& scope, Events& events) const {
    if (prepared) Events::wait(scope, events.record(scope, *prepared));
  }

 private:
  std::vector<std::byte> bytes_;
  DeviceMemory memory_;
};

// A clip in a CUDA graph: each replay computes its own. The backend keeps it for its own lifetime.
class CudaRecordedClip final : public CudaClip {
 public:
  CudaRecordedClip(const Scope& scope, std::shared_ptr<Events> events, kernels::Batch& batch, size_t room,
                   cudaStream_t side)
      : CudaClip(scope.info(), Answers::make(scope)), events_(std::move(events)), items_(scope, batch, side, room) {}

  // Waits for the last prepared replay.
  kernels::Clip wait() override;
  std::byte* items() const { return items_.device(); }
  void prepare(cudaStream_t stream) { items_.prepared = stream; }

 private:
  std::shared_ptr<Events> events_;
  RecordedItems items_;
};

// A guard in a CUDA graph, followed by a recorded step.
class CudaRecordedGuard final : public CudaGuard {
 public:
  // batch: with a single launch, of the items to check. The caller records the check.
  CudaRecordedGuard(const Scope& scope, std::shared_ptr<Events> events, kernels::Batch& batch, cudaStream_t side,
                    Clipping clipping = {});

  // Waits for the last prepared replay.
  int64_t first() override;
  std::byte* items() const { return items_.device(); }
  // Queues the next replay's input: the scales of these items' gradients, if they have changed or a clip multiplies
  // them.
  void prepare(const Scope& scope, std::span<const StepItem> items, Uploads& uploads, cudaStream_t stream);

 private:
  std::shared_ptr<Events> events_;
  size_t count_;  // items
  RecordedItems items_;
};

}  // namespace lowtide::cuda_host
