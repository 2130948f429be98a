// The plug-in of border_test.cpp: remembers its calls, and throws where its target, or a number in its arguments, says
// so.
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend/border_export.h"
#include "border/echo.h"
#include "lowtide/export.h"

namespace lowtide::testing {
namespace {

Seen seen{};

// Throws for a number: an ErrorKind, or something else.
void throw_for(int64_t number) {
  switch (number) {
    case 0:
      return;
    case -1:
      throw std::bad_alloc();
    case -2:
      throw std::runtime_error(LT_ECHO_TEXT);
    case -3:
      throw 3;
    default:
      throw Error(static_cast<ErrorKind>(number), LT_ECHO_TEXT, 28);
  }
}

struct Counted {
  Counted() { ++seen.live; }
  ~Counted() { --seen.live; }
};

struct EchoGuard final : Guard, Counted {
  int64_t first() override {
    throw_for(stop);
    return 7;
  }
  const uint32_t* word() const override { return &value; }
  int64_t stop = 0;
  uint32_t value = 11;
};

template <class T>
void see(const char* call, std::span<const T> items, int threads, void* stream) {
  seen.call = call, seen.items = items.data(), seen.count = items.size(), seen.threads = threads, seen.stream = stream;
  seen.sum = 0;
}
void add(std::span<const std::byte* const> rows) {
  for (const std::byte* const row : rows) seen.sum += static_cast<int64_t>(*row);
}
void add(std::span<const uint32_t> weights) {
  for (const uint32_t weight : weights) seen.sum += weight;
}

void see_steps(const char* call, std::span<const StepItem> items, int threads, void* stream) {
  see(call, items, threads, stream);
  seen.own_guard = true;
  for (const StepItem& item : items) {
    const Layout& layout = *item.param_layout;
    for (size_t d = 0; d < layout.sizes.size(); ++d) seen.sum += layout.sizes[d] * layout.strides[d];
    seen.sum += item.rule + item.key[1][1] + item.origin.row_stride;
    if (item.ballot) seen.sum += item.ballot->first;
    seen.own_guard = seen.own_guard && dynamic_cast<EchoGuard*>(item.guard);
  }
  throw_for(items.empty() ? 0 : items[0].codec);
}

struct EchoRecording final : RecordedStep, Counted {
  void prepare(std::span<const StepItem> items, void* stream) override { see_steps("prepare", items, 0, stream); }
  bool all_prepared() override { return true; }
  bool was_replayed() override { return false; }
};

struct EchoDevice final : Device {
  Limits limits() const override { return {1, 2, 3}; }
  void* allocate(MemoryKind kind, int64_t bytes) override {
    throw_for(bytes);
    return kind == MemoryKind::kPinned ? this : nullptr;
  }
  void free(void* memory) noexcept override { seen.items = memory; }
  void* make_queue() override { return this; }
  void copy(void* queue, void* to, const void* from, int64_t bytes) override {
    seen.call = "copy", seen.items = from, seen.count = static_cast<size_t>(bytes), seen.threads = 0;
    seen.stream = queue, seen.flag = to == this;
  }
  void fill(void* queue, void*, uint32_t pattern, int pattern_bytes, int64_t count) override {
    seen.stream = queue, seen.sum = pattern, seen.threads = pattern_bytes, seen.count = static_cast<size_t>(count);
  }
  void prefetch(void*, const void* shared, int64_t) override { seen.items = shared; }
  Event record(void* queue) override { return queue ? std::make_shared<Counted>() : nullptr; }
  void wait(void*, const Event& event) override { seen.items = event.get(); }
  void host_wait(const Event& event) override { seen.items = event.get(); }
  bool steps_pinned() const override { return true; }
  bool pages_shared() const override { return false; }
  bool is_capturing(void* queue) override { return queue == this; }
  std::string describe() const override { return LT_ECHO_TEXT; }
  void use_allocator(const Allocator& allocator) override { seen.items = allocator.allocate(allocator.context, 5); }
  void trust_memory() override { seen.call = "trust_memory"; }
};

struct EchoBackend final : Backend, Counted {
  const char* name() const override { return "echo"; }
  std::vector<std::string> targets() const override { return {"one", LT_ECHO_TEXT}; }
  const char* target() const override { return target_.c_str(); }
  Device* device() override { return target_ == "none" ? nullptr : &device_; }
  void step(std::span<const StepItem> items, int threads, bool ordered, void* stream) override {
    see_steps("step", items, threads, stream), seen.flag = ordered;
  }
  void norms(std::span<const StepItem> items, int threads, std::span<BlockNorms> out, void* stream) override {
    see_steps("norms", items, threads, stream);
    for (BlockNorms& one : out) one = {{1, 2}, {3, 4}};
  }
  void sum_terms(std::span<const StepItem> items, int threads, TermSums& to, void* stream) override {
    see_steps("sum_terms", items, threads, stream);
    to.below.add(3, 0), to.second.add(INFINITY, 0);
  }
  kernels::NormSums* norm_sums(int64_t count) override { return reinterpret_cast<kernels::NormSums*>(count); }
  void add_norms(std::span<const StepItem> items, void* stream) override { see_steps("add_norms", items, 0, stream); }
  int64_t first_nonfinite(std::span<const StepItem> items, int threads, void* stream) override {
    see_steps("first_nonfinite", items, threads, stream);
    return int64_t{1} << 40;
  }
  std::shared_ptr<Guard> queue_guard(std::span<const StepItem> items, void* stream) override {
    see_steps("queue_guard", items, 0, stream);
    if (items.empty()) return nullptr;
    auto guard = std::make_shared<EchoGuard>();
    guard->stop = items[0].rule;
    return guard;
  }
  std::shared_ptr<RecordedStep> record_step(std::span<const StepItem> items, bool ordered, void* stream) override {
    if (ordered) return Backend::record_step(items, ordered, stream);
    return std::make_shared<EchoRecording>();
  }
  void decode(const CodecItem& item, void* stream) override { see("decode", std::span(&item, 1), 0, stream); }
  void encode(const CodecItem& item, void* stream) override { see("encode", std::span(&item, 1), 0, stream); }
  void pack_signs(std::span<const SignItem> items, int threads, void* stream) override {
    see("pack_signs", items, threads, stream);
  }
  void unpack_signs(std::span<const SignItem> items, int threads, void* stream) override {
    see("unpack_signs", items, threads, stream);
  }
  void vote_signs(const VoteItem& item, int threads, void* stream) override {
    see("vote_signs", std::span(&item, 1), threads, stream);
    add(item.ballots), add(item.presence), add(item.weights);
  }
  void count_signs(const CountItem& item, int threads, void* stream) override {
    see("count_signs", std::span(&item, 1), threads, stream);
    add(item.ballots), add(item.weights), seen.sum += static_cast<int64_t>(item.planes.size());
  }
  void apply_signs(std::span<const ApplyItem> items, int threads, void* stream) override {
    see("apply_signs", items, threads, stream);
  }
  void feedback(std::span<const FeedbackItem> items, int threads, void* stream) override {
    see("feedback", items, threads, stream);
    for (const FeedbackItem& item : items) {
      add(item.ballots), add(item.weights);
      for (const uint16_t* const scale : item.ballot_scales) seen.sum += *scale;
    }
  }

  std::string target_;
  EchoDevice device_;
};

int devices(std::string* text) {
  *text = LT_ECHO_TEXT;
  return 3;
}

std::unique_ptr<Backend> open(const char* target, void* queue) {
  throw_for(reinterpret_cast<intptr_t>(queue));
  auto made = std::make_unique<EchoBackend>();
  made->target_ = target;
  return made;
}

}  // namespace
}  // namespace lowtide::testing

LT_EXPORT_PLUGIN(echo, lowtide::testing::devices, lowtide::testing::open)
extern "C" LT_API const lowtide::testing::Seen* lt_echo_seen();
const lowtide::testing::Seen* lt_echo_seen() { return &lowtide::testing::seen; }
