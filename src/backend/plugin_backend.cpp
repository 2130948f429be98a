#include "backend/plugin_backend.h"

#include <array>
#include <new>
#include <span>
#include <utility>

#include "lowtide/error.h"

namespace lowtide {
namespace {

using border::Handle;
using border::Outcome;
using border::Table;
using border::Text;

Text text_into(std::string& text) {
  return {&text, [](void* context, const char* words) noexcept {
            try {
              static_cast<std::string*>(context)->append(words);
            } catch (const std::bad_alloc&) {  // loses the text but not the error
            }
          }};
}

// Calls a plug-in's function. Throws an Error if the function failed.
template <class Result, class... Parameters, class... Arguments>
Result call(Result (*function)(Outcome*, Parameters...) noexcept, Arguments&&... arguments) {
  std::string message;
  Outcome outcome{.message = text_into(message)};
  const auto check = [&] {
    if (outcome.kind == Outcome::kBadAlloc) throw std::bad_alloc();
    if (outcome.kind != Outcome::kDone) throw Error(static_cast<ErrorKind>(outcome.kind), message, outcome.os_error);
  };
  if constexpr (std::is_void_v<Result>) {
    function(&outcome, std::forward<Arguments>(arguments)...);
    check();
  } else {
    const Result result = function(&outcome, std::forward<Arguments>(arguments)...);
    check();
    return result;
  }
}

// Calls a function and ignores failures, which the caller could not report. None is known to happen.
template <class... Parameters, class... Arguments>
void call_quietly(void (*function)(Outcome*, Parameters...) noexcept, Arguments... arguments) noexcept {
  Outcome outcome{.message = {nullptr, [](void*, const char*) noexcept {}}};
  function(&outcome, arguments...);
}

// An object of the plug-in, with the function that releases it.
template <class T>
class Owned {
 public:
  Owned(border::Call<void, T> release, Handle<T>* handle) : release_(release), handle_(handle) {}
  Owned(Owned&& other) noexcept : release_(other.release_), handle_(std::exchange(other.handle_, nullptr)) {}
  ~Owned() {
    if (handle_) call_quietly(release_, handle_);
  }
  Handle<T>* get() const { return handle_; }

 private:
  border::Call<void, T> release_;
  Handle<T>* handle_;
};

class PluginGuard final : public Guard {
 public:
  PluginGuard(const Table& table, Owned<Table::SharedGuard> guard)
      : table_(table), guard_(std::move(guard)), own_(call(table.guard_own, guard_.get())) {}
  int64_t first() override { return call(table_.guard_first, guard_.get()); }
  const uint32_t* word() const override { return call(table_.guard_word, guard_.get()); }
  Guard* own() const { return own_; }

 private:
  const Table& table_;
  Owned<Table::SharedGuard> guard_;
  Guard* own_;
};

class PluginClip final : public QueuedClip {
 public:
  // `of` is the identity of the backend that queued the clip.
  PluginClip(const Table& table, Owned<Table::SharedClip> clip, std::shared_ptr<const void> of)
      : table_(table), clip_(std::move(clip)), of_(std::move(of)) {}
  kernels::Clip wait() override { return call(table_.clip_wait, clip_.get()); }
  Handle<Table::SharedClip>* handle() const { return clip_.get(); }
  const std::shared_ptr<const void>& of() const { return of_; }

 private:
  const Table& table_;
  Owned<Table::SharedClip> clip_;
  std::shared_ptr<const void> of_;
};

class PluginRecordedStep final : public RecordedStep {
 public:
  PluginRecordedStep(const Table& table, Owned<Table::SharedRecording> recording)
      : table_(table), recording_(std::move(recording)) {}
  void prepare(std::span<const StepItem> items, void* stream) override {
    call(table_.recording_prepare, recording_.get(), items, stream);
  }
  bool all_prepared() override { return call(table_.recording_all_prepared, recording_.get()); }
  bool was_replayed() override { return call(table_.recording_was_replayed, recording_.get()); }

 private:
  const Table& table_;
  Owned<Table::SharedRecording> recording_;
};

// Returns nullptr if the plug-in returned nothing.
template <class T, class Shared>
std::shared_ptr<T> wrap(const Table& table, Owned<Shared> made) {
  return made.get() ? std::make_shared<T>(table, std::move(made)) : nullptr;
}

class PluginDevice final : public Device {
 public:
  PluginDevice(const Table& table, Handle<Device>* device) : table_(table), device_(device) {}

  Limits limits() const override { return call(table_.device_limits, device_); }
  void* allocate(MemoryKind kind, int64_t bytes) override { return call(table_.device_allocate, device_, kind, bytes); }
  void free(void* memory) noexcept override { call_quietly(table_.device_free, device_, memory); }
  void* make_queue() override { return call(table_.device_make_queue, device_); }
  void copy(void* queue, void* to, const void* from, int64_t bytes) override {
    call(table_.device_copy, device_, queue, to, from, bytes);
  }
  void fill(void* queue, void* to, uint32_t pattern, int pattern_bytes, int64_t count) override {
    call(table_.device_fill, device_, queue, to, pattern, pattern_bytes, count);
  }
  void prefetch(void* queue, const void* shared, int64_t bytes) override {
    call(table_.device_prefetch, device_, queue, shared, bytes);
  }
  Event record(void* queue) override {
    Handle<Event>* const event = call(table_.device_record, device_, queue);
    if (!event) return nullptr;
    return Event(event, [release = table_.event_release](void* made) { call_quietly(release, handle_of(made)); });
  }
  void wait(void* queue, const Event& event) override {
    call(table_.device_wait, device_, queue, handle_of(event.get()));
  }
  void host_wait(const Event& event) override { call(table_.device_host_wait, device_, handle_of(event.get())); }
  bool has_happened(const Event& event) override {
    return call(table_.device_has_happened, device_, handle_of(event.get()));
  }
  bool steps_pinned() const override { return call(table_.device_steps_pinned, device_); }
  bool pages_shared() const override { return call(table_.device_pages_shared, device_); }
  bool is_capturing(void* queue) override { return call(table_.device_is_capturing, device_, queue); }
  std::string describe() const override {
    std::string text;
    call(table_.device_describe, device_, text_into(text));
    return text;
  }
  bool is_lost() const override { return call(table_.device_is_lost, device_); }
  void use_allocator(const Allocator& allocator) override { call(table_.device_use_allocator, device_, allocator); }
  void trust_memory() override { call(table_.device_trust_memory, device_); }

 private:
  static Handle<Event>* handle_of(void* event) { return static_cast<Handle<Event>*>(event); }

  const Table& table_;
  Handle<Device>* device_;
};

class PluginBackend final : public Backend, public GradientReader {
 public:
  PluginBackend(const Table& table, Owned<Backend> backend) : table_(table), backend_(std::move(backend)) {
    if (Handle<Device>* const device = call(table.device, backend_.get()))
      device_ = std::make_unique<PluginDevice>(table, device);
  }

  const char* name() const override { return call(table_.name, backend_.get()); }
  std::vector<std::string> targets() const override {
    std::vector<std::string> all;
    call(table_.targets, backend_.get(), Text{&all, [](void* context, const char* target) noexcept {
                                                static_cast<std::vector<std::string>*>(context)->emplace_back(target);
                                              }});
    return all;
  }
  const char* target() const override { return call(table_.target, backend_.get()); }
  Device* device() override { return device_.get(); }
  GradientReader* gradient_reader() override { return this; }

  void step(std::span<const StepItem> items, int threads, bool ordered, void* stream) override {
    call(table_.step, backend_.get(), items, threads, ordered, stream);
  }
  void norms(std::span<const StepItem> items, int threads, std::span<BlockNorms> out, void* stream) override {
    call(table_.norms, backend_.get(), items, threads, out, stream);
  }
  void sum_terms(std::span<const StepItem> items, int threads, TermSums& to, void* stream) override {
    call(table_.sum_terms, backend_.get(), items, threads, to, stream);
  }
  kernels::NormSums* norm_sums(int64_t count) override { return call(table_.norm_sums, backend_.get(), count); }
  void add_norms(std::span<const StepItem> items, void* stream) override {
    call(table_.add_norms, backend_.get(), items, stream);
  }
  int64_t first_nonfinite(std::span<const StepItem> items, int threads, void* stream) override {
    return call(table_.first_nonfinite, backend_.get(), items, threads, stream);
  }
  std::shared_ptr<Guard> queue_guard(std::span<const StepItem> items, void* stream) override {
    Owned made(table_.guard_release, call(table_.queue_guard, backend_.get(), items, stream));
    return wrap<PluginGuard>(table_, std::move(made));
  }
  std::shared_ptr<RecordedStep> record_step(std::span<const StepItem> items, bool ordered, void* stream) override {
    Owned made(table_.recording_release, call(table_.record_step, backend_.get(), items, ordered, stream));
    return wrap<PluginRecordedStep>(table_, std::move(made));
  }
  kernels::Sums read_gradients(std::span<const StepItem> items, void* stream) override {
    return call(table_.read_gradients, backend_.get(), items, stream);
  }
  std::shared_ptr<QueuedClip> queue_clip(std::span<const StepItem> items, const kernels::ClipTo& to, float* norm,
                                         void* stream) override {
    Owned made(table_.clip_release, call(table_.queue_clip, backend_.get(), items, to, norm, stream));
    return made.get() ? std::make_shared<PluginClip>(table_, std::move(made), identity_) : nullptr;
  }
  bool has_queued(const QueuedClip& clip) const override {
    const auto* const plugins = dynamic_cast<const PluginClip*>(&clip);
    return plugins && plugins->of() == identity_;
  }
  std::shared_ptr<Guard> queue_clipped_guard(std::span<const StepItem> items, const std::shared_ptr<QueuedClip>& clip,
                                             double scale, bool searches, const LossScaling& scaling,
                                             void* stream) override {
    Handle<Table::SharedClip>* const own = clip ? static_cast<PluginClip&>(*clip).handle() : nullptr;
    Owned made(table_.guard_release,
               call(table_.clipped_guard, backend_.get(), items, own, scale, searches, scaling, stream));
    return wrap<PluginGuard>(table_, std::move(made));
  }
  void decode(const CodecItem& item, void* stream) override { call(table_.decode, backend_.get(), item, stream); }
  void encode(const CodecItem& item, void* stream) override { call(table_.encode, backend_.get(), item, stream); }
  void pack_signs(std::span<const SignItem> items, int threads, void* stream) override {
    call(table_.pack_signs, backend_.get(), items, threads, stream);
  }
  void unpack_signs(std::span<const SignItem> items, int threads, void* stream) override {
    call(table_.unpack_signs, backend_.get(), items, threads, stream);
  }
  void vote_signs(const VoteItem& item, int threads, void* stream) override {
    call(table_.vote_signs, backend_.get(), item, threads, stream);
  }
  void count_signs(const CountItem& item, int threads, void* stream) override {
    call(table_.count_signs, backend_.get(), item, threads, stream);
  }
  void apply_signs(std::span<const ApplyItem> items, int threads, void* stream) override {
    call(table_.apply_signs, backend_.get(), items, threads, stream);
  }
  void feedback(std::span<const FeedbackItem> items, int threads, void* stream) override {
    call(table_.feedback, backend_.get(), items, threads, stream);
  }

 private:
  const Table& table_;
  Owned<Backend> backend_;
  std::unique_ptr<PluginDevice> device_;
  const std::shared_ptr<const void> identity_ = std::make_shared<char>();  // clips may outlive this backend
};

}  // namespace

std::unique_ptr<Backend> open_plugin(const border::Exports& plugin, const std::string& target, void* queue) {
  Owned opened(plugin.table->release, call(plugin.open, target.c_str(), queue));
  return std::make_unique<PluginBackend>(*plugin.table, std::move(opened));
}

int list_devices(const border::Exports& plugin, std::string* text) { return call(plugin.devices, text_into(*text)); }

bool reads_as_written(const border::Exports& plugin) {
  const Layout layout = Layout::make(std::array<int64_t, 3>{5, 4, 3}, std::array<int64_t, 3>{1, 100, 1000});
  const std::array<const std::byte*, 3> ballots{};
  const std::array<const uint16_t*, 5> scales{};
  const std::array<std::byte*, 7> planes{};
  const std::array<uint32_t, 11> weights{};
  const VoteItem vote{.ballots = ballots, .weights = weights, .presence = std::span(ballots).first(2)};
  const CountItem count{.ballots = ballots, .weights = std::span(weights).first(9), .planes = planes};
  const FeedbackItem feedback{.ballots = std::span(ballots).first(1), .ballot_scales = scales, .weights = weights};
  const border::Sample sample{layout, vote, count, feedback};
  return plugin.digest(sample) == border::digest(sample);
}

Guard* own_guard(Guard* guard) {
  const auto* const plugins = dynamic_cast<PluginGuard*>(guard);
  return plugins ? plugins->own() : guard;
}

}  // namespace lowtide
