// A backend on the fake device: the CPU backend's kernels, run late. For tests of everything that queues device work.
#pragma once

#include "backend/backend.h"
#include "support/fake/fake_device.h"
#include "support/test.h"

namespace lowtide::fake {

struct FakeBackendOptions {
  uint64_t seed = 0;
  int64_t drop_wait = -1;                                                  // the wait() to ignore, from 0
  int64_t device_bytes = int64_t{1} << 40, host_bytes = int64_t{1} << 40;  // capacities; host: with shared
  int64_t says_total = -1;    // if not -1, the total that limits() reports, without a free amount
  bool steps_pinned = false;  // if false, a kernel that touches pinned memory is an error
  bool guards = false;        // queue_guard() returns a guard
  std::string description = "";
  // Bytes per second of the virtual clock; 0: no time. step: state on the first queue; link: the other queues.
  double step_rate = 0, link_rate = 0;
  int64_t drop_host_wait = -1;  // the number of the host_wait() call to ignore, from 0
};

// Any thread may call it, as with a driver's device: a save beside steps reads chunks in a thread of its own.
class FakeBackend final : public Backend, public Device {
 public:
  explicit FakeBackend(const FakeBackendOptions& options);

  const char* name() const override { return "fake"; }
  const char* target() const override { return cpu_->target(); }
  std::vector<std::string> targets() const override { return cpu_->targets(); }
  Device* device() override { return this; }
  // Tensors and states of items must be memory of this backend.
  void step(std::span<const StepItem> items, int threads, bool ordered, void* stream) override;
  void norms(std::span<const StepItem> items, int threads, std::span<BlockNorms> out, void* stream) override;
  void sum_terms(std::span<const StepItem> items, int threads, TermSums& to, void* stream) override;
  int64_t first_nonfinite(std::span<const StepItem> items, int threads, void* stream) override;
  void decode(const CodecItem& item, void* stream) override;
  void encode(const CodecItem& item, void* stream) override;
  std::shared_ptr<Guard> queue_guard(std::span<const StepItem> items, void* stream) override;
  std::shared_ptr<RecordedStep> record_step(std::span<const StepItem> items, bool ordered, void* stream) override;
  using Backend::pack_signs;
  using Backend::unpack_signs;
  void pack_signs(std::span<const SignItem> items, int threads, void* stream) override;
  void unpack_signs(std::span<const SignItem> items, int threads, void* stream) override;
  void vote_signs(const VoteItem& item, int threads, void* stream) override;
  void count_signs(const CountItem& item, int threads, void* stream) override;
  void apply_signs(std::span<const ApplyItem> items, int threads, void* stream) override;
  void feedback(std::span<const FeedbackItem> items, int threads, void* stream) override;

  Limits limits() const override;
  void* allocate(MemoryKind kind, int64_t bytes) override;
  void free(void* memory) noexcept override;
  void* make_queue() override;
  void copy(void* queue, void* to, const void* from, int64_t bytes) override;
  void fill(void* queue, void* to, uint32_t pattern, int pattern_bytes, int64_t count) override;
  void prefetch(void* queue, const void* shared, int64_t bytes) override;
  Event record(void* queue) override;
  void wait(void* queue, const Event& event) override;
  void host_wait(const Event& event) override;
  bool has_happened(const Event& event) override;
  bool steps_pinned() const override { return options_.steps_pinned; }
  bool is_capturing(void* queue) override { return capturing_.contains(stream_of(queue)); }
  bool is_lost() const override { return lost_; }
  std::string describe() const override { return options_.description; }
  void use_allocator(const Allocator& allocator) override { allocator_ = allocator; }

  // Records the kernels queued from now on, until end_capture() returns the recording's number.
  void begin_capture(void* queue);
  int end_capture(void* queue);
  void replay(int recording, void* queue);
  // Makes every later call throw kDeviceLost; some of the queued work happens.
  void lose() const;
  // Does the same in the n-th later call, from 1.
  void lose_at(int64_t call) { lose_at_ = call; }
  // Like allocate(), but ignores use_allocator().
  void* allocate_own(MemoryKind kind, int64_t bytes);
  void free_own(void* memory) noexcept;

  FakeDevice& fake() { return device_; }
  int64_t device_peak() const { return device_.peak(near_); }
  int64_t host_peak() const { return device_.peak(far_); }  // pinned and shared memory
  int64_t used() const { return device_.used(near_) + device_.used(far_); }
  int64_t queues() const { return static_cast<int64_t>(queues_.size()); }
  int64_t prefetches() const { return prefetches_; }
  int64_t waits() const { return waits_; }
  int64_t host_waits() const { return host_waits_; }
  // Tells the race checker that the host reads or writes this memory (in a file transfer, say), if the device owns it.
  // Any thread.
  void host_touches(const void* memory, int64_t bytes, bool writes);
  // The number of waits of this queue for another one with a queued copy from device to pinned memory: for write-back.
  int64_t waits_for_write_back(void* queue) const;
  bool dropped_mattered() const { return dropped_mattered_; }  // it ordered something that was unordered

 private:
  struct Allocation {
    std::byte* data;
    int64_t bytes;
    int region;
    int64_t begin;  // where its data begins in the region
    MemoryKind kind;
  };
  struct Batch;
  struct Kernel {
    std::string name;
    std::vector<Span> reads, writes;
    int64_t bytes = 0;
    std::function<void()> run = {};
  };
  class QueuedGuard;
  class Recorded;
  // Queues a kernel, or adds it to the recording in progress.
  void launch(void* queue, Kernel kernel);
  // Runs like the kernel of a step that reads these items, but waits.
  void read(const char* name, std::span<const StepItem> items, bool states, std::function<void()> run, void* stream);
  // Returns a kernel without its function.
  Kernel step_kernel(std::span<const StepItem> items) const;
  void run_step(Batch& batch, bool ordered);
  void require_alive() const;
  void require_not_capturing(void* queue);
  // Returns the device's bytes that a kernel touches; throws kInternal for other memory.
  Span touched(const void* memory, int64_t bytes) const;
  int stream_of(void* queue) const { return queue ? *static_cast<int*>(queue) : 0; }
  const Allocation& allocation_of(const Span& span) const;
  MemoryKind kind_of(const Span& span) const { return allocation_of(span).kind; }
  // Returns false for memory that is not this device's.
  bool find(const void* memory, int64_t bytes, Span* span) const;
  void finish(void* queue);
  void pack(const SignItem& item, void* stream);
  void unpack(const SignItem& item, void* stream);

  std::recursive_mutex mutex_;  // guards the device's calls, and the work that they run
  FakeBackendOptions options_;
  mutable FakeDevice device_;  // mutable, because the device may be lost in a query
  std::unique_ptr<Backend> cpu_;
  int near_, far_;
  std::deque<int> queues_;  // stream numbers, at stable addresses
  std::vector<Allocation> allocations_;
  int64_t prefetches_ = 0, waits_ = 0, host_waits_ = 0;
  std::set<int> writing_back_;                  // streams
  std::map<int, int> recorded_on_;              // stream of each event
  std::map<int, std::vector<int>> waited_for_;  // the streams for which each stream has waited
  bool dropped_mattered_ = false;
  mutable std::atomic<bool> lost_ = false;
  mutable std::atomic<int64_t> lose_at_ = 0;  // set while the thread of a save makes calls
  Allocator allocator_;
  std::set<const void*> from_allocator_;
  std::map<int, std::vector<Kernel>> capturing_;  // for each stream
  std::vector<std::vector<Kernel>> recordings_;
};

}  // namespace lowtide::fake

namespace lowtide::testing {

// Fails the test if queued work could run in two orders with different results.
inline void expect_no_race(fake::FakeBackend& backend) {
  for (const auto& race : backend.fake().race_checker().races()) ADD_FAILURE() << to_string(race);
}

}  // namespace lowtide::testing
