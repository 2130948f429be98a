// Queued searches for gradients that are not finite (Guard), and the memory for their answers.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>

#include "backend/backend.h"
#include "backend/cuda/host/device_memory.h"
#include "backend/cuda/host/events.h"
#include "backend/cuda/host/host_memory.h"

namespace lowtide::cuda_host {

// Memory for one answer, on the device and on the host. Kept for the next guard.
struct Answer {
  DeviceMemory device;
  HostMemory host;
  Device::Event found;  // behind the copy to the host
  Device::Event used;   // behind the last step that reads the device's

  uint32_t* word() const { return reinterpret_cast<uint32_t*>(device.data()); }
  uint32_t* copy() const { return reinterpret_cast<uint32_t*>(host.data()); }
};

// Any thread.
class Answers {
 public:
  explicit Answers(const Place& place) : place_(place) {}

  // One that nothing reads any more.
  std::unique_ptr<Answer> take();
  void give_back(std::unique_ptr<Answer> answer) noexcept;

 private:
  Place place_;
  std::mutex mutex_;
  std::list<std::unique_ptr<Answer>> free_;
};

class CudaGuard final : public Guard {
 public:
  CudaGuard(const Place& place, std::shared_ptr<Answers> answers, std::unique_ptr<Answer> answer)
      : place_(place), answers_(std::move(answers)), answer_(std::move(answer)) {}
  ~CudaGuard() override { answers_->give_back(std::move(answer_)); }

  int64_t first() override;
  const uint32_t* word() const override { return answer_->word(); }
  Answer& answer() { return *answer_; }

 private:
  Place place_;
  std::shared_ptr<Answers> answers_;
  std::unique_ptr<Answer> answer_;
};

}  // namespace lowtide::cuda_host
