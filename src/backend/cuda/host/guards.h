// Queued searches for gradients that are not finite (Guard), clips that are queued, and the memory for their answers.
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

// Memory for one answer, on the device and on the host. Kept for the next guard.
struct Answer {
  static constexpr size_t kBytes = sizeof(kernels::Clip);  // or a search's number

  DeviceMemory device;
  HostMemory host;
  Device::Event found;               // behind the copy to the host
  Device::Event used;                // behind all steps that read the device's
  std::optional<cudaStream_t> open;  // of work that writes it, until `found` is behind that
  bool searched = false;             // the device's is what a search has found, and so, behind `found`, is the copy

  uint32_t* word() const { return reinterpret_cast<uint32_t*>(device.data()); }
  uint32_t* copy() const { return reinterpret_cast<uint32_t*>(host.data()); }
  kernels::Clip* clip() const { return reinterpret_cast<kernels::Clip*>(device.data()); }
  void copy_to_host(const Scope& scope, cudaStream_t stream, size_t bytes = sizeof(uint32_t)) const {
    scope.check(cudaMemcpyAsync(host.data(), device.data(), bytes, cudaMemcpyDeviceToHost, stream));
  }
};

// Any thread.
class Answers {
 public:
  explicit Answers(const DeviceInfo& info) : info_(info) {}

  // One that nothing reads any more.
  std::unique_ptr<Answer> take();
  static std::unique_ptr<Answer> make(const Scope& scope);
  void give_back(std::unique_ptr<Answer> answer) noexcept;

 private:
  DeviceInfo info_;
  std::mutex mutex_;
  std::list<std::unique_ptr<Answer>> free_;
};

class CudaGuard : public Guard {
 public:
  // answers: where the answer goes back to; nullptr: it is the guard's own.
  CudaGuard(const DeviceInfo& info, std::shared_ptr<Answers> answers, std::unique_ptr<Answer> answer)
      : info_(info), answers_(std::move(answers)), answer_(std::move(answer)) {}
  ~CudaGuard() override {
    if (answers_) answers_->give_back(std::move(answer_));
  }

  int64_t first() override;
  const uint32_t* word() const override { return answer_->word(); }
  Answer& answer() { return *answer_; }

 protected:
  // The answer that has reached the host.
  int64_t found() const;
  const DeviceInfo& info() const { return info_; }

 private:
  DeviceInfo info_;
  std::shared_ptr<Answers> answers_;
  std::unique_ptr<Answer> answer_;
};

class CudaClip final : public QueuedClip {
 public:
  CudaClip(const DeviceInfo& info, std::shared_ptr<Answers> answers, std::unique_ptr<Answer> answer)
      : info_(info), answers_(std::move(answers)), answer_(std::move(answer)) {}
  ~CudaClip() override { answers_->give_back(std::move(answer_)); }

  kernels::Clip wait() override;
  Answer& answer() { return *answer_; }

 private:
  DeviceInfo info_;
  std::shared_ptr<Answers> answers_;
  std::unique_ptr<Answer> answer_;
};

// A guard of steps that clip.
class CudaClippedGuard final : public CudaGuard {
 public:
  CudaClippedGuard(const DeviceInfo& info, std::shared_ptr<Answers> answers, std::shared_ptr<CudaClip> clip,
                   double scale, bool searches)
      : CudaGuard(info, answers, answers->take()), clip_(std::move(clip)), scale_(scale), searches_(searches) {}

  const uint32_t* word() const override { return searches_ ? CudaGuard::word() : nullptr; }
  CudaClip& clip() const { return *clip_; }
  double scale() const { return scale_; }

 private:
  std::shared_ptr<CudaClip> clip_;
  double scale_;
  bool searches_;
};

// A search in a CUDA graph, behind which a recorded step is. What it searches stays on the device with it; both must
// live as long as the graph is replayed.
class CudaRecordedGuard final : public CudaGuard {
 public:
  // batch: of one launch, whose items are put on the device by way of `side`. The caller records the search.
  CudaRecordedGuard(const Scope& scope, std::unique_ptr<Answer> answer, std::shared_ptr<Events> events,
                    kernels::Batch& batch, cudaStream_t side);

  // Waits for the last replay that was prepared.
  int64_t first() override;
  // Where kernels find the items.
  const std::byte* items() const { return memory_.data(); }
  // Queues what the next replay there needs: the scales of these items' gradients, if they are others.
  void prepare(const Scope& scope, std::span<const StepItem> items, Uploads& uploads, cudaStream_t stream);

 private:
  std::shared_ptr<Events> events_;
  std::vector<std::byte> bytes_;  // as on the device
  size_t count_;                  // items
  DeviceMemory memory_;
  std::optional<cudaStream_t> last_;  // where replays were prepared; a null handle is the default stream
};

}  // namespace lowtide::cuda_host
