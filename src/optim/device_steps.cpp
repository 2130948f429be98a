#include "optim/device_steps.h"

#include <exception>

#include "backend/gradient_reader.h"
#include "backend/replays.h"
#include "optim/gradient_norm.h"

namespace lowtide {
namespace {

// Returns the slots that prefetch() borrowed for a step, whether the step runs, is skipped or is refused.
class Borrowed {
 public:
  explicit Borrowed(ParamTable& table) : table_(table) {}
  ~Borrowed() {
    if (ended_) return;
    for (const std::unique_ptr<Residence>& residence : table_.residences) try {
        end(*residence);
      } catch (...) {  // report the step's own failure instead
      }
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

  void end() {
    for (const std::unique_ptr<Residence>& residence : table_.residences) end(*residence);
    ended_ = true;
  }

 private:
  static void end(Residence& residence) {
    if (DeviceStore* const store = residence.device_store()) store->end_prefetch();
  }

  ParamTable& table_;
  bool ended_ = false;
};

}  // namespace

DeviceSteps::DeviceSteps(ParamTable& table, StepBuffers& buffers)
    : table_(table), buffers_(buffers), backend_(table.on.at_params), device_(*table.on.device) {}

DeviceSteps::~DeviceSteps() {
  try {
    wait_for_steps();
  } catch (...) {  // a lost device uses no memory
  }
}

void DeviceSteps::wait_for_steps() {
  device_.host_wait(queued_);
  if (replays_) device_.host_wait(device_.record(replay_queue_));
}

void DeviceSteps::synchronize() {
  wait_for_steps();
  for (const std::unique_ptr<Residence>& residence : table_.residences)
    if (residence->store()) residence->store()->synchronize();
  resolve_and_raise();
}

StepResult DeviceSteps::step(std::span<const Gradient> grads, const StepOptions& options, const Ballots* ballots) {
  if (device_.is_capturing(options.stream)) return record(grads, options, ballots);
  require_no_scaling(options);
  resolve_and_raise();
  StepOptions own = options;
  const std::shared_ptr<QueuedClip> clip = take_clip(own);
  StepPlan plan(table_, buffers_, grads, own, ballots);
  Borrowed borrowed(table_);
  announce(options);  // before allocating memory
  plan.gather();
  // A step that waits for norms or sums knows when it returns whether it was taken.
  const bool searches = plan.searches() && !table_.waits_for_device();
  const std::shared_ptr<Guard> guard = queue_guard(plan, clip, searches, options);
  const bool pending = guard && searches;
  if (guard) plan.set_guard(guard.get());
  if (pending) begin_pending(plan, guard, false);
  StepResult taken{true, -1, pending};
  std::exception_ptr kept;
  try {
    taken = plan.take(pending);
  } catch (const KeptInMemory&) {  // the step is complete
    kept = std::current_exception();
  } catch (...) {  // state under other budgets may have been stepped
    try {
      note_queued(options.stream);
      if (pending_) pending_->queued = queued_;
    } catch (...) {  // a lost device uses no memory
    }
    throw;
  }
  borrowed.end();
  if (!taken.applied) return taken;
  note_queued(options.stream);
  if (pending_) pending_->queued = queued_;
  if (kept) std::rethrow_exception(kept);
  return taken;
}

std::shared_ptr<Guard> DeviceSteps::queue_guard(StepPlan& plan, const std::shared_ptr<QueuedClip>& clip, bool searches,
                                                const StepOptions& options) const {
  if (clip || options.scaling.found_inf)
    return backend_.gradient_reader()->queue_clipped_guard(plan.items(), clip, options.grad_scale, searches,
                                                           options.scaling, options.stream);
  return searches ? backend_.queue_guard(plan.items(), options.stream) : nullptr;
}

// Returns a clip that the device computes, to be applied there. If the host knows the clip, or must know it for norms
// or sums, turns it into an ordinary factor and returns nullptr.
std::shared_ptr<QueuedClip> DeviceSteps::take_clip(StepOptions& options) const {
  std::shared_ptr<QueuedClip> clip = std::move(options.clip);
  if (!clip) return nullptr;
  GradientReader* const reader = backend_.gradient_reader();
  if (!table_.waits_for_device() && reader && reader->has_queued(*clip)) {
    check_grad_scale(options.grad_scale);
    options.grad_scale = 1;
    return clip;
  }
  options.clip = clip;
  options = without_clip(options);
  return nullptr;
}

// Budgets under automatic residency divide the free memory evenly.
void DeviceSteps::announce(const StepOptions& options) {
  int64_t automatic = 0;
  for (const std::unique_ptr<Residence>& residence : table_.residences) automatic += residence->automatic();
  for (const std::unique_ptr<Residence>& residence : table_.residences)
    residence->tell(options.stream, options.free_bytes < 0 || automatic == 0 ? -1 : options.free_bytes / automatic);
}

int64_t DeviceSteps::prefetch(int64_t bytes, void* stream) {
  if (device_.is_capturing(stream)) return 0;
  // resolve() does not wait for an event that has happened.
  if (pending_ && !pending_->replayed && device_.has_happened(pending_->queued)) resolve();
  int64_t taken = 0;
  for (const std::unique_ptr<Residence>& residence : table_.residences)
    if (DeviceStore* const store = residence->device_store()) {
      if (!pending_) store->note_what_happened();
      taken += store->prefetch(bytes - taken, stream);
    }
  return taken;
}

int64_t DeviceSteps::demote(int64_t bytes) {
  int64_t freed = 0;
  for (const std::unique_ptr<Residence>& residence : table_.residences)
    if (DeviceStore* const store = residence->device_store()) freed += store->demote(bytes - freed);
  return freed;
}

void DeviceSteps::begin_pending(const StepPlan& plan, std::shared_ptr<Guard> guard, bool replayed) {
  Pending step;
  step.guard = std::move(guard);
  step.params.assign(plan.params().begin(), plan.params().end());
  step.steps = table_.steps;
  step.raises = table_.nonfinite == NonFinite::kRaise;
  step.replayed = replayed;
  step.before.reserve(plan.params().size() + plan.empty().size());
  for (const std::span<const int64_t> numbers : {plan.params(), std::span<const int64_t>(plan.empty())})
    for (const int64_t number : numbers) {
      const Parameter& param = table_.params[static_cast<size_t>(number)];
      step.before.push_back({number, param.steps, param.carried, param.uninitialized, param.progress.size()});
      step.progress.insert(step.progress.end(), param.progress.begin(), param.progress.end());
    }
  pending_ = std::move(step);
}

void DeviceSteps::resolve() {
  if (!pending_) return;
  if (device_.is_lost()) {  // state that the step may have changed is refused
    pending_.reset();
    return;
  }
  if (pending_->replayed) {
    device_.host_wait(device_.record(replay_queue_));
    // Otherwise the answer belongs to an earlier replay. Only the last recording counts; recording again abandons
    // earlier ones.
    require_replayed(recordings_.back()->step->was_replayed());
  }
  const int64_t bad = pending_->guard->first();
  Pending step = std::move(*pending_);
  pending_.reset();
  // The step that uses the guard may still be running.
  std::erase_if(old_guards_, [&](const auto& old) { return device_.has_happened(old.first); });
  if (!step.replayed) old_guards_.emplace_back(step.queued, std::move(step.guard));
  if (bad < 0) return;
  auto progress = step.progress.begin();
  for (const Pending::Before& before : step.before) {
    Parameter& param = table_.params[static_cast<size_t>(before.param)];
    param.steps = before.steps;
    param.carried = before.carried;
    param.uninitialized = before.uninitialized;
    param.progress.assign(progress, progress + static_cast<ptrdiff_t>(before.pieces));
    progress += static_cast<ptrdiff_t>(before.pieces);
  }
  table_.steps = step.steps;
  if (step.raises)
    unraised_ = step.params[static_cast<size_t>(bad)];
  else
    ++table_.skipped_steps;
}

void DeviceSteps::resolve_and_raise() {
  resolve();
  raise_nonfinite();
  check_replays();
}

void DeviceSteps::raise_nonfinite() {
  if (unraised_) StepPlan::fail_nonfinite(*std::exchange(unraised_, std::nullopt));
}

}  // namespace lowtide
