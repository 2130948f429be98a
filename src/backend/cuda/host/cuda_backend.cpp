#include "backend/cuda/host/cuda_backend.h"

#include <map>
#include <utility>

#include "backend/cuda/device/launch.h"
#include "backend/cuda/host/cuda_device.h"
#include "backend/cuda/host/guards.h"
#include "backend/cuda/host/pointers.h"
#include "backend/cuda/host/recorded_step.h"
#include "backend/cuda/host/signs.h"
#include "backend/cuda/host/target.h"
#include "backend/cuda/host/uploads.h"
#include "backend/kernels/batch.h"
#include "backend/kernels/codec_tables.h"

namespace lowtide::cuda_host {
namespace {

class CudaBackend final : public Backend {
 public:
  CudaBackend(const DeviceInfo& info, bool fast)
      : info_(info),
        fast_(fast),
        events_(std::make_shared<Events>(info_)),
        answers_(std::make_shared<Answers>(info_)),
        device_(info_, events_),
        uploads_(UploadMemory{info_}),
        side_(Scope(info_, "making a stream")),
        steps_(kStepShape) {}

  const char* name() const override { return "cuda"; }
  std::vector<std::string> targets() const override { return {kExact, kFast}; }
  const char* target() const override { return fast_ ? kFast : kExact; }
  Device* device() override { return &device_; }

  void step(std::span<const StepItem> items, int, bool ordered, void* stream) override {
    const Scope scope(info_, "step");
    const cudaStream_t on = stream_for_now(scope, stream);
    add_steps(items, ordered);
    const std::vector<const void*> tables = tables_of(scope, steps_);
    {
      const Upload there = upload(scope, on, steps_);
      queue_steps(scope, steps_, there.device(), tables, fast_, nullptr, queue(on));
    }
    mark_guards(scope, items, on);
    scope.queued(on);
  }

  void norms(std::span<const StepItem> items, int, std::span<BlockNorms> out, void* stream) override {
    const Scope scope(info_, "norms");
    const cudaStream_t on = stream_for_now(scope, stream);
    const PointerCheck check(info_, device_);
    for (size_t i = 0; i < items.size(); ++i) check(items[i], i);
    batch_.clear();
    batch_.add_steps(items, false);
    const std::vector<const void*> tables = tables_of(scope, batch_);
    if (out.empty()) return;
    const size_t at = batch_.bytes();  // items are aligned as norms are
    const Upload there(
        scope, uploads_, events_, on, at, [&](std::byte* host, std::byte* device) { batch_.write(host, device); },
        nullptr, out.size_bytes());
    auto* norms = there.at<BlockNorms>(at);
    for (size_t i = 0; i < batch_.launches().size(); ++i) {
      const kernels::Batch::Launch& part = batch_.launches()[i];
      scope.check(cuda_kernels::norms(part.rule, part.codec, batch_.items(there.device(), part),
                                      batch_.starts(there.device(), part), part.count, part.units, tables[i], norms,
                                      queue(on)));
      norms += part.units;
    }
    scope.check(cudaMemcpyAsync(there.host() + at, there.device() + at, out.size_bytes(), cudaMemcpyDeviceToHost, on));
    scope.check(cudaStreamSynchronize(on));
    batch_.take_norms(reinterpret_cast<const BlockNorms*>(there.host() + at), out);
  }

  int64_t first_nonfinite(std::span<const StepItem> items, int, void* stream) override {
    return queue_guard(items, stream)->first();
  }

  std::shared_ptr<Guard> queue_guard(std::span<const StepItem> items, void* stream) override {
    LT_REQUIRE(items.size() < kernels::kNoItem, "got %zu parameters, wanted fewer than 2^32 - 1", items.size());
    const Scope scope(info_, "looking for gradients that are not finite");
    const cudaStream_t on = device_.queue_of(scope, stream);
    const PointerCheck check(info_, device_);
    for (size_t i = 0; i < items.size(); ++i) check.gradient(items[i], i);
    steps_.clear();
    steps_.begin_launch(0, 0);
    for (size_t i = 0; i < items.size(); ++i) steps_.add(items[i], static_cast<int64_t>(i));
    if (scope.is_capturing(on)) {
      auto guard = std::make_shared<CudaRecordedGuard>(scope, Answers::make(scope), events_, steps_, side_.get());
      search(scope, guard->items(), guard->answer(), on);
      return guard;
    }
    auto guard = std::make_shared<CudaGuard>(info_, answers_, answers_->take());
    {
      const Upload there = upload(scope, on, steps_);
      search(scope, there.device(), guard->answer(), on);
    }
    guard->answer().found = events_->record(scope, on);
    scope.queued(on);
    return guard;
  }

  std::shared_ptr<RecordedStep> record_step(std::span<const StepItem> items, bool ordered, void* stream) override {
    const Scope scope(info_, "recording a step");
    const cudaStream_t on = device_.queue_of(scope, stream);
    LT_REQUIRE(scope.is_capturing(on),
               "got a stream that is not capturing, wanted one that is (cudaStreamBeginCapture)");
    for (const StepItem& item : items)
      LT_REQUIRE(!item.guard || dynamic_cast<CudaRecordedGuard*>(item.guard),
                 "got a step to record behind a search that was not recorded, wanted one that was");
    add_steps(items, ordered);
    const std::vector<const void*> tables = tables_of(scope, steps_);
    return std::make_shared<CudaRecordedStep>(RecordingParts{info_, device_, uploads_, events_}, scope, steps_, ordered,
                                              tables, fast_, on);
  }

  void decode(const CodecItem& item, void* stream) override { convert("decode", item, stream, cuda_kernels::decode); }
  void encode(const CodecItem& item, void* stream) override { convert("encode", item, stream, cuda_kernels::encode); }

  void pack_signs(std::span<const SignItem> items, int, void* stream) override {
    signs("pack_signs", items, stream, true, [&](const SignQueue& on) {
      for (const SignItem& item : items) cuda_host::pack_signs(on, item);
    });
  }
  void unpack_signs(std::span<const SignItem> items, int, void* stream) override {
    signs("unpack_signs", items, stream, true, [&](const SignQueue& on) {
      for (const SignItem& item : items) cuda_host::unpack_signs(on, item);
    });
  }
  void vote_signs(const VoteItem& item, int, void* stream) override {
    signs("vote_signs", std::span(&item, 1), stream, false,
          [&](const SignQueue& on) { cuda_host::vote_signs(on, item); });
  }
  void count_signs(const CountItem& item, int, void* stream) override {
    signs("count_signs", std::span(&item, 1), stream, false,
          [&](const SignQueue& on) { cuda_host::count_signs(on, item); });
  }
  void apply_signs(std::span<const ApplyItem> items, int, void* stream) override {
    signs("apply_signs", items, stream, false, [&](const SignQueue& on) {
      batch_.clear();
      batch_.begin_launch(0, 0);
      for (const ApplyItem& item : items) batch_.add(item);
      const kernels::Batch::Launch& part = batch_.launches()[0];
      if (part.units == 0) return;
      const Upload there = upload(on.scope, on.queue.stream, batch_);
      on.scope.check(cuda_kernels::apply_signs(batch_.items(there.device(), part), batch_.starts(there.device(), part),
                                               part.count, part.units, on.queue));
    });
  }
  void feedback(std::span<const FeedbackItem> items, int, void* stream) override {
    signs("feedback", items, stream, false, [&](const SignQueue& on) {
      for (const FeedbackItem& item : items)
        cuda_host::feedback(on, item, item.codes ? tables(on.scope, item.codec) : nullptr);
    });
  }

 private:
  using Convert = cudaError_t(int, bool, const kernels::DeviceItem*, int64_t, const void*, const cuda_kernels::Queue&);

  cuda_kernels::Queue queue(cudaStream_t stream) const { return {stream, info_.processors}; }

  // Refuses one that is capturing: a replay would read what the host has written since.
  cudaStream_t stream_for_now(const Scope& scope, void* stream) const {
    const cudaStream_t on = device_.queue_of(scope, stream);
    LT_REQUIRE(
        !scope.is_capturing(on),
        "got a stream that is being captured for a graph, wanted one that is not; a step is captured by preparing "
        "the optimizer for replays");
    return on;
  }

  void add_steps(std::span<const StepItem> items, bool ordered) {
    const PointerCheck check(info_, device_);
    for (size_t i = 0; i < items.size(); ++i) check(items[i], i);
    steps_.clear();
    steps_.add_steps(items, ordered);
  }

  Upload upload(const Scope& scope, cudaStream_t stream, kernels::Batch& batch) {
    return Upload(scope, uploads_, events_, stream, batch.bytes(),
                  [&](std::byte* host, std::byte* device) { batch.write(host, device); });
  }

  // Queues the search of the batch, which is at `device`, and its answer's way to the host.
  void search(const Scope& scope, const std::byte* device, Answer& answer, cudaStream_t stream) const {
    scope.check(cuda_kernels::fill(reinterpret_cast<unsigned char*>(answer.word()), kernels::kNoItem, sizeof(uint32_t),
                                   queue(stream)));
    const kernels::Batch::Launch& part = steps_.launches()[0];
    if (part.units)
      scope.check(cuda_kernels::first_nonfinite(steps_.items(device, part), steps_.starts(device, part), part.count,
                                                part.units, answer.word(), queue(stream)));
    scope.check(cudaMemcpyAsync(answer.copy(), answer.word(), sizeof(uint32_t), cudaMemcpyDeviceToHost, stream));
  }

  // Steps of `items` have been queued: what their guards answer is read until then.
  void mark_guards(const Scope& scope, std::span<const StepItem> items, cudaStream_t stream) {
    const Guard* marked = nullptr;
    for (const StepItem& item : items) {
      if (!item.guard || item.guard == marked) continue;
      static_cast<CudaGuard*>(item.guard)->answer().used = events_->record(scope, stream);
      marked = item.guard;
    }
  }

  // The codec's tables on the device, nullptr if it has none. Made when first asked for, and waited for.
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
  std::vector<const void*> tables_of(const Scope& scope, const kernels::Batch& batch) {
    std::vector<const void*> all;
    for (const kernels::Batch::Launch& part : batch.launches()) all.push_back(tables(scope, part.codec));
    return all;
  }

  void convert(const char* what, const CodecItem& item, void* stream, Convert* run) {
    const Scope scope(info_, what);
    const cudaStream_t on = stream_for_now(scope, stream);
    const PointerCheck check(info_, device_);
    check(item);
    batch_.clear();
    batch_.begin_launch(0, item.codec);
    batch_.add(item);
    const kernels::Batch::Launch& part = batch_.launches()[0];
    if (part.units == 0) return;
    const void* const with = tables(scope, item.codec);
    {
      const Upload there = upload(scope, on, batch_);
      scope.check(run(item.codec, item.is_signed, batch_.items(there.device(), part), part.units, with, queue(on)));
    }
    scope.check(cudaStreamSynchronize(on));
  }

  // run(queue), all items being checked.
  template <class Item, class Run>
  void signs(const char* what, std::span<const Item> items, void* stream, bool can_be_captured, Run&& run) {
    for (const Item& item : items) lowtide::check(item);
    const Scope scope(info_, what);
    const cudaStream_t on = can_be_captured ? device_.queue_of(scope, stream) : stream_for_now(scope, stream);
    const PointerCheck check(info_, device_);
    for (size_t i = 0; i < items.size(); ++i) check(items[i], i);
    run(SignQueue{scope, queue(on), uploads_, events_});
    scope.queued(on);
  }

  const DeviceInfo info_;
  const bool fast_;
  std::shared_ptr<Events> events_;
  std::shared_ptr<Answers> answers_;
  CudaDevice device_;
  Uploads uploads_;
  OwnStream side_;  // for what is waited for at once
  std::map<int, DeviceMemory> tables_;
  kernels::Batch steps_, batch_;  // kept between calls for their memory; in tiles, in blocks
};

// -1 where the runtime cannot tell.
int ordinal_of(cudaStream_t stream) {
  int ordinal = -1;
#if CUDART_VERSION >= 12080
  if (cudaStreamGetDevice(stream, &ordinal) != cudaSuccess) {
    cudaGetLastError();
    return -1;
  }
#else
  (void)stream;
#endif
  return ordinal;
}

}  // namespace

std::unique_ptr<Backend> make_backend(const std::string& target, void* stream) {
  const Target wanted = parse_target(target);
  const int of_stream = stream ? ordinal_of(static_cast<cudaStream_t>(stream)) : -1;
  LT_REQUIRE(of_stream < 0 || wanted.ordinal < 0 || of_stream == wanted.ordinal,
             "got CUDA target '%s' and a stream of device %d, wanted both of one device", target.c_str(), of_stream);
  return std::make_unique<CudaBackend>(describe_device(of_stream >= 0 ? of_stream : wanted.ordinal), wanted.fast);
}

}  // namespace lowtide::cuda_host
