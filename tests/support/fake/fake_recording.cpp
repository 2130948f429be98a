// The guards, recordings and loss of the fake device.
#include "backend/cpu/cpu_backend.h"
#include "support/fake/fake_batch.h"
#include "backend/kernels/items.h"
#include "backend/replays.h"
#include "core/error.h"
#include "support/test.h"

namespace lowtide::fake {

// The word is device memory: dropping the guard while steps may still read it is a race.
class FakeBackend::QueuedGuard final : public Guard {
 public:
  QueuedGuard(FakeBackend& of, std::span<const StepItem> items, void* queue)
      : of_(of), queue_(queue), memory_(of, MemoryKind::kDevice, sizeof(uint32_t)) {
    auto* const word = reinterpret_cast<uint32_t*>(memory_.data());
    Kernel kernel{"guard", {}, {of.touched(word, sizeof *word)}, sizeof *word};
    for (const Span& span : of.step_kernel(items).reads) kernel.reads.push_back(span);
    kernel.run = [&of, word, batch = std::make_shared<Batch>(items)] {
      const int64_t first = of.cpu_->first_nonfinite(batch->items, 1, nullptr);
      *word = first < 0 ? kernels::kNoItem : static_cast<uint32_t>(first);
    };
    recorded_ = of.is_capturing(queue);
    of.launch(queue, std::move(kernel));
    if (!recorded_) searched_ = of.record(queue);
  }

  int64_t first() override {
    of_.host_wait(recorded_ ? of_.record(queue_) : searched_);
    const std::vector<uint8_t> bytes = of_.device_.host_read(of_.touched(memory_.data(), sizeof(uint32_t)));
    uint32_t found;
    std::memcpy(&found, bytes.data(), sizeof found);
    return found == kernels::kNoItem ? -1 : static_cast<int64_t>(found);
  }
  const uint32_t* word() const override { return reinterpret_cast<const uint32_t*>(memory_.data()); }

 private:
  FakeBackend& of_;
  void* queue_;
  DeviceBytes memory_;
  bool recorded_ = false;
  Event searched_;
};

class FakeBackend::Recorded final : public RecordedStep {
 public:
  Recorded(FakeBackend& of, std::span<const StepItem> items, bool ordered, void* queue)
      : of_(of), queue_(queue), count_(items.size()), memory_(of, MemoryKind::kDevice, 64) {
    Kernel kernel = of.step_kernel(items);
    const Span own = of.touched(memory_.data(), memory_.bytes());
    kernel.reads.push_back(own);
    kernel.writes.push_back(own);
    kernel.run = [&of, ordered, state = state_] {
      if (!state->next) {
        state->unprepared = true;
        return;
      }
      of.run_step(*std::exchange(state->next, nullptr), ordered);
    };
    of.launch(queue, std::move(kernel));
  }

  void prepare(std::span<const StepItem> items, void* stream) override {
    require_all_prepared(all_prepared());
    require_replayed(was_replayed());
    LT_REQUIRE(items.size() == count_, "got %zu items for a recorded step of %zu", items.size(), count_);
    Kernel kernel{"prepare", {}, {of_.touched(memory_.data(), memory_.bytes())}, memory_.bytes()};
    kernel.run = [state = state_, batch = std::make_shared<Batch>(items)] { state->next = batch; };
    of_.launch(stream, std::move(kernel));
    queue_ = stream;
  }

  bool all_prepared() override {
    of_.host_wait(of_.record(queue_));
    return !std::exchange(state_->unprepared, false);
  }

  bool was_replayed() override {
    of_.host_wait(of_.record(queue_));
    return !state_->next;
  }

 private:
  struct State {
    std::shared_ptr<Batch> next;
    bool unprepared = false;
  };
  FakeBackend& of_;
  void* queue_;
  size_t count_;
  DeviceBytes memory_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

std::shared_ptr<Guard> FakeBackend::queue_guard(std::span<const StepItem> items, void* stream) {
  if (!options_.guards || items.empty()) return nullptr;
  return std::make_shared<QueuedGuard>(*this, items, stream);
}

std::shared_ptr<RecordedStep> FakeBackend::record_step(std::span<const StepItem> items, bool ordered, void* stream) {
  LT_REQUIRE(is_capturing(stream), "got a queue that records nothing, wanted one between begin and end of a capture");
  return std::make_shared<Recorded>(*this, items, ordered, stream);
}

void FakeBackend::launch(void* queue, Kernel kernel) {
  const std::lock_guard lock(mutex_);
  require_alive();
  if (const auto found = capturing_.find(stream_of(queue)); found != capturing_.end()) {
    found->second.push_back(std::move(kernel));
    return;
  }
  device_.launch(stream_of(queue), kernel.name, kernel.reads, kernel.writes, kernel.bytes, std::move(kernel.run));
}

void FakeBackend::begin_capture(void* queue) { capturing_[stream_of(queue)]; }

int FakeBackend::end_capture(void* queue) {
  recordings_.push_back(std::move(capturing_.extract(stream_of(queue)).mapped()));
  return static_cast<int>(recordings_.size()) - 1;
}

void FakeBackend::replay(int recording, void* queue) {
  for (const Kernel& kernel : recordings_.at(static_cast<size_t>(recording))) launch(queue, kernel);
}

void FakeBackend::lose() const {
  device_.lose();
  lost_ = true;
}

void FakeBackend::require_alive() const {
  if (lose_at_ > 0 && --lose_at_ == 0) lose();
  if (lost_) fail(ErrorKind::kDeviceLost, "the fake device is lost");
}

void FakeBackend::require_not_capturing(void* queue) {
  LT_REQUIRE(!is_capturing(queue), "got an event to record or to wait for on a queue that is being captured");
}

}  // namespace lowtide::fake
