// A backend whose queues are busy for random times before each copy and each step, so that work of different queues
// meets in orders that an idle machine never shows. (Fills keep them busy, because libsycl 9 deadlocks when host tasks
// wait for events of other queues.)
#pragma once

#include "backend/backend.h"
#include "support/test.h"

namespace lowtide::testing {

class DelayedDevice final : public Backend, public Device {
 public:
  DelayedDevice(std::unique_ptr<Backend> backend, uint64_t seed)
      : backend_(std::move(backend)), device_(*backend_->device()), rng_(seed), own_(device_.make_queue()) {}
  ~DelayedDevice() override {
    for (void* queue : busy_) device_.host_wait(device_.record(queue));
  }

  const char* name() const override { return backend_->name(); }
  const char* target() const override { return backend_->target(); }
  std::vector<std::string> targets() const override { return backend_->targets(); }
  Device* device() override { return this; }
  void step(std::span<const StepItem> items, int threads, bool ordered, void* stream) override {
    delay(stream);
    backend_->step(items, threads, ordered, given(stream));
  }
  void norms(std::span<const StepItem> items, int threads, std::span<BlockNorms> out, void* stream) override {
    backend_->norms(items, threads, out, given(stream));
  }
  void sum_terms(std::span<const StepItem> items, int threads, TermSums& to, void* stream) override {
    backend_->sum_terms(items, threads, to, given(stream));
  }
  kernels::NormSums* norm_sums(int64_t count) override { return backend_->norm_sums(count); }
  void add_norms(std::span<const StepItem> items, void* stream) override {
    delay(stream);
    backend_->add_norms(items, given(stream));
  }
  int64_t first_nonfinite(std::span<const StepItem> items, int threads, void* stream) override {
    return backend_->first_nonfinite(items, threads, given(stream));
  }
  std::shared_ptr<Guard> queue_guard(std::span<const StepItem> items, void* stream) override {
    return backend_->queue_guard(items, given(stream));
  }
  void decode(const CodecItem& item, void* stream) override { backend_->decode(item, given(stream)); }
  void encode(const CodecItem& item, void* stream) override { backend_->encode(item, given(stream)); }

  void pack_signs(std::span<const SignItem> items, int threads, void* stream) override {
    backend_->pack_signs(items, threads, given(stream));
  }
  void unpack_signs(std::span<const SignItem> items, int threads, void* stream) override {
    backend_->unpack_signs(items, threads, given(stream));
  }
  void vote_signs(const VoteItem& item, int threads, void* stream) override {
    backend_->vote_signs(item, threads, given(stream));
  }
  void count_signs(const CountItem& item, int threads, void* stream) override {
    backend_->count_signs(item, threads, given(stream));
  }
  void apply_signs(std::span<const ApplyItem> items, int threads, void* stream) override {
    backend_->apply_signs(items, threads, given(stream));
  }
  void feedback(std::span<const FeedbackItem> items, int threads, void* stream) override {
    backend_->feedback(items, threads, given(stream));
  }

  Limits limits() const override { return device_.limits(); }
  void* allocate(MemoryKind kind, int64_t bytes) override { return device_.allocate(kind, bytes); }
  void free(void* memory) noexcept override { device_.free(memory); }
  void* make_queue() override { return device_.make_queue(); }
  void copy(void* queue, void* to, const void* from, int64_t bytes) override {
    delay(queue);
    device_.copy(given(queue), to, from, bytes);
  }
  void fill(void* queue, void* to, uint32_t pattern, int pattern_bytes, int64_t count) override {
    device_.fill(given(queue), to, pattern, pattern_bytes, count);
  }
  void prefetch(void* queue, const void* shared, int64_t bytes) override {
    device_.prefetch(given(queue), shared, bytes);
  }
  Event record(void* queue) override { return device_.record(given(queue)); }
  void wait(void* queue, const Event& event) override { device_.wait(given(queue), event); }
  void host_wait(const Event& event) override { device_.host_wait(event); }

  bool has_happened(const Event& event) override { return device_.has_happened(event); }
  bool steps_pinned() const override { return device_.steps_pinned(); }
  bool pages_shared() const override { return device_.pages_shared(); }
  bool is_lost() const override { return device_.is_lost(); }
  // Without its name, each optimizer would measure the device's transfer rates anew.
  std::string describe() const override { return device_.describe(); }

  int64_t delays() const { return delays_; }

 private:
  void* given(void* queue) { return queue ? queue : own_; }
  void delay(void* queue) {
    const std::lock_guard lock(mutex_);  // a save beside steps copies in its own thread
    if (!rng_.chance(0.5)) return;
    ++delays_;
    queue = given(queue);
    if (std::find(busy_.begin(), busy_.end(), queue) == busy_.end()) {
      busy_.push_back(queue);
      scratch_.emplace_back(device_, MemoryKind::kDevice, kMost);
    }
    // Each queue fills its own memory, because two fills of one memory would race.
    const auto number = static_cast<size_t>(std::find(busy_.begin(), busy_.end(), queue) - busy_.begin());
    device_.fill(queue, scratch_[number].data(), 0, 1, rng_.between(1, kMost));
  }

  static constexpr int64_t kMost = 2 << 20;
  std::unique_ptr<Backend> backend_;
  Device& device_;
  std::mutex mutex_;  // guards everything below
  Rng rng_;
  void* own_;
  std::vector<DeviceBytes> scratch_;
  std::vector<void*> busy_;
  int64_t delays_ = 0;
};

}  // namespace lowtide::testing
