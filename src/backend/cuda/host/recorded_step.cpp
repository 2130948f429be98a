#include "backend/cuda/host/recorded_step.h"

#include <cstddef>
#include <cstring>

#include "backend/cuda/host/guards.h"
#include "backend/cuda/host/cuda_device.h"
#include "backend/replays.h"

namespace lowtide::cuda_host {

using cuda_kernels::ReplayState;

static_assert(offsetof(ReplayState, prepared) == 0, "written behind the batch, with it");

CudaRecordedStep::CudaRecordedStep(const RecordingParts& of, const Scope& scope, kernels::Batch batch, bool ordered,
                                   std::span<const void* const> tables, bool fast, cudaStream_t stream,
                                   const std::function<void(std::byte*)>& before)
    : of_(of),
      batch_(std::move(batch)),
      launches_(batch_.launches()),
      ordered_(ordered),
      bytes_(batch_.bytes()),
      memory_(scope, bytes_ + sizeof(ReplayState)),
      answers_(of.info, 2 * sizeof(ReplayState)),
      side_(scope) {
  const cuda_kernels::Queue side = of.info.queue(side_.get());
  scope.check(cuda_kernels::fill(reinterpret_cast<unsigned char*>(state()), 0, sizeof(ReplayState), side));
  scope.check(cudaStreamSynchronize(side_.get()));
  const cuda_kernels::Queue recording = of.info.queue(stream);
  before(memory_.data());
  queue_steps(scope, batch_, memory_.data(), tables, fast, state(), recording);
  scope.check(cuda_kernels::finish_replay(state(), recording));
}

CudaRecordedStep::~CudaRecordedStep() {
  if (answered_) quietly(of_.info, [&] { return cudaEventSynchronize(Events::handle(answered_)); });
}

ReplayState* CudaRecordedStep::answer(size_t i) const { return reinterpret_cast<ReplayState*>(answers_.data()) + i; }

ReplayState* CudaRecordedStep::state() const { return reinterpret_cast<ReplayState*>(memory_.data() + bytes_); }

void CudaRecordedStep::prepare(std::span<const StepItem> items, void* stream) {
  const Scope scope(of_.info, "preparing a replay");
  const cudaStream_t on = of_.device.queue_of(scope, stream);
  LT_REQUIRE(!scope.is_capturing(on), "got a stream that is capturing, wanted the one that the next replay runs on");
  const PointerCheck check(of_.info, of_.device);
  for (size_t i = 0; i < items.size(); ++i) check(items[i], i);
  batch_.clear();
  batch_.add_steps(items, ordered_);
  LT_REQUIRE(
      batch_.launches() == launches_ && batch_.bytes() == bytes_,
      "got %zu parameters whose sizes or kinds differ from the recorded step's, wanted the same; record the step again",
      items.size());
  check_replays(scope);
  const Guard* ready = nullptr;
  for (const StepItem& item : items) {
    if (!item.guard || item.guard == ready) continue;
    auto* const guard = dynamic_cast<CudaRecordedGuard*>(item.guard);
    LT_REQUIRE(guard, "got a replay to prepare after a search that was not recorded, wanted the recorded search");
    guard->prepare(scope, items, of_.uploads, on);
    ready = item.guard;
  }
  if (last_ && *last_ != on) scope.check(cudaStreamWaitEvent(on, Events::handle(of_.events->record(scope, *last_)), 0));
  // Records the event also after a failure, because the answer's host memory must outlive the copy to it.
  struct Record {
    CudaRecordedStep& step;
    cudaStream_t on;
    ~Record() { step.answered_ = step.of_.events->record_at_end(on); }
  } const record{*this, on};
  scope.check(cudaMemcpyAsync(answer(1), state(), sizeof(ReplayState), cudaMemcpyDeviceToHost, on));
  const uint32_t next = prepared_ + 1;
  const Upload there(
      scope, of_.uploads, of_.events, on, bytes_ + sizeof next,
      [&](std::byte* host, std::byte* device) {
        batch_.write(host, device);
        std::memcpy(host + bytes_, &next, sizeof next);
      },
      memory_.data());
  prepared_ = next, looked_ = false;
  last_ = on;
}

void CudaRecordedStep::check_replays(const Scope& scope) {
  if (!last_) return;
  Events::wait(scope, answered_);
  if (!std::exchange(looked_, true)) {
    require_all_prepared(note_missed(answer(1)->missed));
    require_replayed(answer(1)->done + 1 == prepared_);
  }
  const cudaError_t running = cudaStreamQuery(*last_);
  if (running == cudaErrorNotReady) {
    cudaGetLastError();
    return;
  }
  scope.check(running);
  const ReplayState now = read_state(scope);
  require_all_prepared(note_missed(now.missed));
  require_replayed(now.done == prepared_);
}

ReplayState CudaRecordedStep::wait_for_state() {
  const Scope scope(of_.info, "asking a recorded step for its replays");
  if (last_) scope.check(cudaStreamWaitEvent(side_.get(), Events::handle(of_.events->record(scope, *last_)), 0));
  return read_state(scope);
}

ReplayState CudaRecordedStep::read_state(const Scope& scope) {
  scope.check(cudaMemcpyAsync(answer(0), state(), sizeof(ReplayState), cudaMemcpyDeviceToHost, side_.get()));
  scope.check(cudaStreamSynchronize(side_.get()));
  return *answer(0);
}

bool CudaRecordedStep::all_prepared() { return note_missed(wait_for_state().missed); }

bool CudaRecordedStep::was_replayed() { return wait_for_state().done == prepared_; }

}  // namespace lowtide::cuda_host
