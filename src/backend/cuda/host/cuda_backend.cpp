#include "backend/cuda/host/cuda_backend.h"

#include <map>
#include <utility>
#include <vector>

#include "backend/cuda/device/launch.h"
#include "backend/cuda/host/cuda_device.h"
#include "backend/cuda/host/guards.h"
#include "backend/cuda/host/recorded_step.h"
#include "backend/cuda/host/search_table.h"
#include "backend/cuda/host/uploads.h"
#include "backend/kernels/device_backend.h"

namespace lowtide::cuda_host {
namespace {

constexpr const char kExact[] = "exact";  // the same bits as the CPU backend
constexpr const char kFast[] = "fast";

class CudaBackend final : public kernels::DeviceBackend<CudaBackend> {
 public:
  CudaBackend(const DeviceInfo& info, bool fast)
      : DeviceBackend(cuda_kernels::kTileBlocks),
        info_(info),
        fast_(fast),
        events_(std::make_shared<Events>(info_)),
        answers_(std::make_shared<Answers>(info_)),
        clips_(std::make_shared<Answers>(info_)),
        device_(info_, events_),
        uploads_(UploadMemory{info_}),
        searched_(info_),
        side_(Scope(info_, "making a stream")) {}

  const char* name() const override { return "cuda"; }
  std::vector<std::string> targets() const override { return {kExact, kFast}; }
  const char* target() const override { return fast_ ? kFast : kExact; }
  Device* device() override { return &device_; }

  void step(std::span<const StepItem> items, int, bool ordered, void* stream) override {
    with_call("step", stream, false, [&](Call& call) {
      const std::vector<const void*> tables = add_steps(call, items, ordered);
      Upload there = upload(call, steps_);
      scale_items(call, there.device(), guard_of(items));
      queue_steps(call.scope, steps_, there.device(), tables, fast_, nullptr, call.queue);
      // The step reads the results of its guards until this event.
      const Device::Event done = there.end(call.scope);
      for_each_answer(items, [&](Answer& answer) { note_use(call, answer, done); });
    });
  }

  kernels::NormSums* norm_sums(int64_t count) override {
    const Scope scope(info_, "allocating memory for norms");
    norm_sums_.emplace_back(scope, static_cast<size_t>(count) * sizeof(kernels::NormSums));
    return reinterpret_cast<kernels::NormSums*>(norm_sums_.back().data());
  }

  void add_norms(std::span<const StepItem> items, void* stream) override {
    with_call("norms", stream, false, [&](Call& call) {
      const std::vector<const void*> tables = add_steps(call, items, false);
      Upload there = upload(call, steps_);
      scale_items(call, there.device(), guard_of(items));
      for_each_launch(steps_, there.device(), tables, fast_, nullptr, [&](const auto& launch, const auto& part) {
        if (part.adds_norms) call.scope.check(cuda_kernels::add_norms(launch, call.queue));
      });
      const Device::Event done = there.end(call.scope);
      for_each_answer(items, [&](Answer& answer) { note_use(call, answer, done); });
    });
  }

  int64_t first_nonfinite(std::span<const StepItem> items, int, void* stream) override {
    return queue_guard(items, stream)->first();
  }

  std::shared_ptr<Guard> queue_guard(std::span<const StepItem> items, void* stream) override {
    std::shared_ptr<Guard> queued;
    with_call("looking for gradients that are not finite", stream, true, [&](Call& call) {
      const Scope& scope = call.scope;
      const cudaStream_t on = call.queue.stream;
      check_gradients(call, items);
      if (scope.is_capturing(on)) {
        add_gradients(items);
        auto guard = std::make_shared<CudaRecordedGuard>(scope, events_, steps_, side_.get());
        search(call, guard->items(), guard->answer(), cuda_kernels::first_nonfinite);
        queued = guard;
        return;
      }
      if (searched_.holds(items)) {
        searched_.wait(scope, on);
      } else {
        add_gradients(items);
        searched_.put(scope, uploads_, events_, on, items, steps_);
      }
      auto guard = std::make_shared<CudaGuard>(info_, answers_->take());
      search(call, searched_.launch(), searched_.items(), searched_.starts(), guard->answer(),
             cuda_kernels::first_nonfinite);
      searched_.note_use(send_to_host(call, guard->answer()));
      guard->answer().searched = true;
      queued = guard;
    });
    return queued;
  }

  std::shared_ptr<QueuedClip> queue_clip(std::span<const StepItem> items, const kernels::ClipTo& to, float* norm,
                                         void* stream) override {
    std::shared_ptr<CudaClip> queued;
    with_call("reading gradients for their norm", stream, true, [&](Call& call) {
      call.pointers.one(norm, "the norm", 0);
      const cudaStream_t on = call.queue.stream;
      if (call.scope.is_capturing(on)) {
        check_gradients(call, items);
        add_gradients(items);
        auto clip = std::make_shared<CudaRecordedClip>(call.scope, events_, steps_, kSumsRoom, side_.get());
        call.scope.check(
            cuda_kernels::clip(queue_sums(call, clip->items()), to, clip->answer().clip(), norm, call.queue));
        clip->answer().copy_to_host(call.scope, on, Answer::kBytes);
        recorded_clips_.push_back(clip);
        queued = std::move(clip);
        return;
      }
      auto clip = std::make_shared<CudaClip>(info_, clips_->take());
      sum_gradients(call, items, [&](const kernels::Sums* sums, std::byte*) {
        clip->answer().open = on;
        call.scope.check(cuda_kernels::clip(sums, to, clip->answer().clip(), norm, call.queue));
      });
      send_to_host(call, clip->answer(), Answer::kBytes);
      queued = std::move(clip);
    });
    return queued;
  }

  std::shared_ptr<Guard> queue_clipped_guard(std::span<const StepItem> items, const std::shared_ptr<QueuedClip>& clip,
                                             double scale, bool searches, const LossScaling& scaling,
                                             void* stream) override {
    std::shared_ptr<CudaGuard> queued;
    with_call("looking for gradients that are not finite", stream, true, [&](Call& call) {
      if (scaling.found_inf) {
        queued = record_loss_scaling(call, clip, scale, scaling);
        return;
      }
      const bool is_recorded = dynamic_cast<CudaRecordedClip*>(clip.get()) != nullptr;
      LT_REQUIRE(is_recorded == call.scope.is_capturing(call.queue.stream),
                 "got a clip that was%s recorded in a graph for a step that is%s, wanted both recorded or neither",
                 is_recorded ? "" : " not", is_recorded ? " not" : "");
      const Clipping clipping{std::static_pointer_cast<CudaClip>(clip), scale, searches};
      Answer& found = clipping.clip->answer();
      const auto behind = std::bind_front(cuda_kernels::first_nonfinite_behind, found.clip(), scale);
      const std::span<const StepItem> searched = searches ? items : items.first(0);
      check_gradients(call, searched);
      add_gradients(searched);
      if (is_recorded) {
        auto guard = std::make_shared<CudaRecordedGuard>(call.scope, events_, steps_, side_.get(), clipping);
        if (searches) {
          scale_items(call, guard->items(), guard.get());
          search(call, guard->items(), guard->answer(), behind);
        }
        queued = std::move(guard);
        return;
      }
      auto guard = std::make_shared<CudaGuard>(info_, answers_->take(), clipping);
      // The clip may belong to another stream.
      call.scope.check(cudaStreamWaitEvent(call.queue.stream, Events::handle(found.found), 0));
      if (searches) {
        {
          const Upload there = upload(call, steps_);
          scale_items(call, there.device(), guard.get());
          search(call, there.device(), guard->answer(), behind);
        }
        note_use(call, found);
        send_to_host(call, guard->answer());
        guard->answer().searched = true;
      }
      queued = std::move(guard);
    });
    return queued;
  }

  std::shared_ptr<RecordedStep> record_step(std::span<const StepItem> items, bool ordered, void* stream) override {
    std::shared_ptr<RecordedStep> recorded;
    with_call("recording a step", stream, true, [&](Call& call) {
      const cudaStream_t on = call.queue.stream;
      LT_REQUIRE(call.scope.is_capturing(on),
                 "got a stream that is not capturing, wanted one that is (cudaStreamBeginCapture)");
      for (const StepItem& item : items)
        LT_REQUIRE(!item.guard || dynamic_cast<CudaRecordedGuard*>(item.guard),
                   "got a step to record after a search that was not recorded, wanted a recorded search");
      const std::vector<const void*> tables = add_steps(call, items, ordered);
      recorded = std::make_shared<CudaRecordedStep>(
          RecordingParts{info_, device_, uploads_, events_}, call.scope, steps_, ordered, tables, fast_, on,
          [&](std::byte* device) { scale_items(call, device, guard_of(items)); });
      for_each_answer(items, [&](Answer& answer) { answer.copy_to_host(call.scope, on); });
    });
    return recorded;
  }

 private:
  friend DeviceBackend;

  // One call on a stream, as DeviceBackend requires.
  struct Call {
    CudaBackend& of;
    const Scope& scope;
    cuda_kernels::Queue queue;
    PointerCheck pointers;

    const void* tables(int codec) { return of.tables(scope, codec); }
    template <class Write>
    Upload upload(size_t bytes, Write&& write, size_t room) {
      return Upload(scope, of.uploads_, of.events_, queue.stream, bytes, write, nullptr, room);
    }
    void download(std::byte* host, const std::byte* device, size_t bytes) {
      scope.check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, queue.stream));
      wait();
    }
    void wait() { scope.check(cudaStreamSynchronize(queue.stream)); }

    // Queues kernel(arguments ..., last ..., queue).
    template <class Kernel, class... Last>
    auto queued(Kernel kernel, Last... last) {
      return [=, this](auto... arguments) { scope.check(kernel(arguments..., last..., queue)); };
    }
    auto convert(bool encodes, const CodecItem& item, int64_t) {
      return queued(std::bind_front(encodes ? cuda_kernels::encode : cuda_kernels::decode, item.codec, item.is_signed));
    }
    auto terms(const kernels::Batch::Launch& part) {
      return queued(std::bind_front(cuda_kernels::sum_terms, part.rule, part.codec));
    }
    auto sums(int64_t) { return queued(cuda_kernels::sum_squares); }
    auto merge_sums() { return queued(cuda_kernels::merge_sums); }
    auto apply(int64_t) { return queued(cuda_kernels::apply_signs); }
    auto pack(const SignItem& item) { return queued(std::bind_front(cuda_kernels::pack_signs, item.dtype)); }
    auto unpack(const SignItem& item) { return queued(std::bind_front(cuda_kernels::unpack_signs, item.dtype)); }
    auto vote(int64_t signs) { return queued(cuda_kernels::vote_signs, signs); }
    auto vote_presence(int64_t signs) { return queued(cuda_kernels::vote_presence, signs); }
    auto count(int64_t signs) { return queued(cuda_kernels::count_signs, signs); }
    auto feedback(int64_t signs) { return queued(cuda_kernels::feedback, signs); }
    auto fill(int64_t) { return queued(cuda_kernels::fill); }
  };

  template <class Work>
  void with_call(const char* doing, void* stream, bool can_be_captured, Work&& work) {
    const Scope scope(info_, doing);
    const cudaStream_t on = device_.queue_of(scope, stream);
    LT_REQUIRE(
        can_be_captured || !scope.is_capturing(on),
        "got a stream that is being captured for a graph, wanted one that is not; a step is captured by preparing "
        "the optimizer for replays");  // a replay would read memory that the host has rewritten
    Call call{*this, scope, info_.queue(on), {info_, device_}};
    work(call);
    scope.queued(on);
  }

  std::shared_ptr<CudaGuard> record_loss_scaling(Call& call, const std::shared_ptr<QueuedClip>& clip, double scale,
                                                 const LossScaling& scaling) {
    const cudaStream_t on = call.queue.stream;
    call.pointers.one(scaling.found_inf, "found_inf", 0);
    call.pointers.one(scaling.scale, "the loss scale", 0);
    add_gradients({});
    auto measured = std::dynamic_pointer_cast<CudaRecordedClip>(clip);
    LT_REQUIRE(call.scope.is_capturing(on) && (measured || !clip),
               "got loss scaling on the device outside a graph, wanted grad_scale");
    const std::shared_ptr<CudaRecordedClip> by =
        measured ? measured : std::make_shared<CudaRecordedClip>(call.scope, events_, steps_, 0, side_.get());
    auto guard =
        std::make_shared<CudaRecordedGuard>(call.scope, events_, steps_, side_.get(), Clipping{by, scale, true});
    call.scope.check(cuda_kernels::loss_scaling(scaling, by->answer().clip(), measured != nullptr,
                                                guard->answer().word(), call.queue));
    return guard;
  }

  // Lays out steps, and returns the tables of each launch.
  std::vector<const void*> add_steps(Call& call, std::span<const StepItem> items, bool ordered) {
    check_pointers(call, items);
    steps_.clear();
    steps_.add_steps(items, ordered);
    std::vector<const void*> all;
    for (const kernels::Batch::Launch& part : steps_.launches()) all.push_back(call.tables(part.codec));
    return all;
  }

  // Queues a check by kernel(items, starts, count, units, word, queue).
  template <class Kernel>
  void search(Call& call, const kernels::Batch::Launch& part, const kernels::DeviceItem* items, const int64_t* starts,
              Answer& answer, Kernel&& kernel) {
    constexpr int64_t kBytes = sizeof(uint32_t);
    answer.open = call.queue.stream;
    const bool is_clear = std::exchange(answer.searched, false) && *answer.copy() == kernels::kNoItem;
    if (!is_clear) call.fill(kBytes)(reinterpret_cast<unsigned char*>(answer.word()), kernels::kNoItem, kBytes);
    if (part.units) call.scope.check(kernel(items, starts, part.count, part.units, answer.word(), call.queue));
  }
  // Queues a check of the batch, which is at `device`.
  template <class Kernel>
  void search(Call& call, const std::byte* device, Answer& answer, Kernel&& kernel) {
    const kernels::Batch::Launch& part = steps_.launches()[0];
    search(call, part, steps_.items(device, part), steps_.starts(device, part), answer, kernel);
  }

  // Copies the result on a separate stream, because a copy between the check and the step would leave the device idle.
  // Returns an event after the check.
  Device::Event send_to_host(Call& call, Answer& answer, size_t bytes = sizeof(uint32_t)) {
    Device::Event written = events_->record(call.scope, call.queue.stream);
    call.scope.check(cudaStreamWaitEvent(side_.get(), Events::handle(written), 0));
    answer.open = side_.get();
    answer.copy_to_host(call.scope, side_.get(), bytes);
    answer.found = events_->record(call.scope, side_.get());
    answer.open.reset();
    return written;
  }

  // `done` is an event after the readers of the result, if known. Steps on several streams may read one clip.
  void note_use(Call& call, Answer& answer, const Device::Event& done = nullptr) {
    const cudaStream_t stream = call.queue.stream;
    if (answer.used) call.scope.check(cudaStreamWaitEvent(stream, Events::handle(answer.used), 0));
    answer.used = done && !answer.used ? done : events_->record(call.scope, stream);
  }

  // Returns the guard that the items of a step share, or nullptr if they have none.
  static const CudaGuard* guard_of(std::span<const StepItem> items) {
    return items.empty() ? nullptr : static_cast<const CudaGuard*>(items[0].guard);
  }
  // Scales the items of the batch at `device` by the guard's clip, if it has one.
  void scale_items(Call& call, std::byte* device, const CudaGuard* guard) {
    if (!guard || !guard->clipping().clip) return;
    const Clipping& by = guard->clipping();
    call.queued(cuda_kernels::scale_items)(reinterpret_cast<kernels::DeviceItem*>(device), steps_.size(),
                                           by.clip->answer().clip(), by.scale);
  }

  // Calls fn with the results of these items' guards.
  template <class Fn>
  static void for_each_answer(std::span<const StepItem> items, Fn&& fn) {
    const Guard* last = nullptr;
    for (const StepItem& item : items) {
      if (!item.guard || item.guard == last) continue;
      const auto* const guard = static_cast<const CudaGuard*>(item.guard);
      if (guard->clipping().searches) fn(guard->answer());
      if (guard->clipping().clip) fn(guard->clipping().clip->answer());
      last = item.guard;
    }
  }

  // Returns the codec's tables on the device, or nullptr if it has none. Makes them on first use, and waits.
  const void* tables(const Scope& scope, int codec) {
    if (const auto known = tables_.find(codec); known != tables_.end()) return known->second.data();
    const std::vector<std::byte> bytes = kernels::codec_tables(codec);
    DeviceMemory memory;
    if (!bytes.empty()) {
      memory = DeviceMemory(scope, bytes.size());
      scope.check(cudaMemcpyAsync(memory.data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice, side_.get()));
      scope.check(cudaStreamSynchronize(side_.get()));
    }
    return tables_.emplace(codec, std::move(memory)).first->second.data();
  }

  const DeviceInfo info_;
  const bool fast_;
  std::shared_ptr<Events> events_;
  std::shared_ptr<Answers> answers_, clips_;  // results of checks, clear if nothing was found; results
                                              // of clips
  CudaDevice device_;
  Uploads uploads_;
  SearchTable searched_;
  OwnStream side_;  // for work for which the host waits at once, and for copies of results
  std::map<int, DeviceMemory> tables_;
  std::vector<DeviceMemory> norm_sums_;
  std::vector<std::shared_ptr<CudaRecordedClip>> recorded_clips_;  // graphs may be replayed while this lives
};

// Returns the ordinal of the stream's device, or -1 if the runtime cannot tell.
int ordinal_of(cudaStream_t stream) {
  int ordinal = -1;
  if (find_device(stream, ordinal) != cudaSuccess) cudaGetLastError();
  return ordinal;
}

bool is_captured(cudaStream_t stream) {
  bool captured = false;
  if (find_capture(stream, captured) != cudaSuccess) cudaGetLastError();
  return captured;
}

}  // namespace

std::unique_ptr<Backend> make_backend(const std::string& target, void* stream) {
  const kernels::Target wanted = kernels::parse_target(target);
  const bool fast = wanted.kind == kFast;
  LT_REQUIRE(wanted.is_well && (fast || wanted.kind == kExact || wanted.kind.empty()),
             "got CUDA target '%s', wanted exact or fast, alone or with a device number, as in exact:0",
             target.c_str());
  const auto on = static_cast<cudaStream_t>(stream);
  const int of_stream = on ? ordinal_of(on) : -1;
  LT_REQUIRE(
      of_stream >= 0 || wanted.number >= 0 || !on || !is_captured(on),
      "got CUDA target '%s' and a stream that is being captured, which cannot be asked for its device; wanted one "
      "that is not captured, or a target with the device's number, such as exact:0",
      target.c_str());
  LT_REQUIRE(of_stream < 0 || wanted.number < 0 || of_stream == wanted.number,
             "got CUDA target '%s' and a stream of device %d, wanted both of one device", target.c_str(), of_stream);
  return std::make_unique<CudaBackend>(describe_device(of_stream >= 0 ? of_stream : wanted.number), fast);
}

}  // namespace lowtide::cuda_host
