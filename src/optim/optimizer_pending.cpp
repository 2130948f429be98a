// Steps whose gradients the device searches by itself: counted when they are queued, and uncounted if it turns out that
// they changed nothing.
#include "optim/optimizer_impl.h"

namespace lowtide {

void Optimizer::Impl::fail_nonfinite(int64_t param) {
  fail(ErrorKind::kInvalidArgument,
       "the gradient of parameter %lld holds a NaN, an infinity or a magnitude of 2^62 and above; nothing was changed",
       ll(param));
}

void Optimizer::Impl::begin_pending(std::shared_ptr<Guard> guard, bool replayed) {
  Pending step;
  step.guard = std::move(guard);
  step.params = item_params;
  step.steps = steps;
  step.raises = nonfinite == NonFinite::kRaise;
  step.replayed = replayed;
  for (const std::vector<int64_t>* params : {&item_params, &empty_params})
    for (const int64_t param : *params) {
      const Parameter& slot = slots[static_cast<size_t>(param)];
      step.before.push_back({param, slot.steps, slot.uninitialized, slot.progress});
    }
  pending = std::move(step);
}

void Optimizer::Impl::resolve() {
  if (!pending) return;
  Device& device = *backend->device();
  if (device.is_lost()) {  // what that step may have changed is refused
    pending.reset();
    return;
  }
  if (pending->replayed) {
    device.host_wait(device.record(replay_queue));
    require_replayed();  // else the answer is of an earlier one
  }
  const int64_t bad = pending->guard->first();
  Pending step = std::move(*pending);
  pending.reset();
  // Its steps may still run.
  std::erase_if(old_guards, [&](const auto& old) { return device.has_happened(old.first); });
  if (!step.replayed) old_guards.emplace_back(step.queued, std::move(step.guard));
  if (bad < 0) return;
  for (Pending::Before& before : step.before) {
    Parameter& slot = slots[static_cast<size_t>(before.param)];
    slot.steps = before.steps;
    slot.uninitialized = before.uninitialized;
    slot.progress = std::move(before.progress);
  }
  steps = step.steps;
  if (step.raises)
    unraised = step.params[static_cast<size_t>(bad)];
  else
    ++skipped_steps;
}

void Optimizer::Impl::resolve_and_raise() {
  resolve();
  if (unraised) fail_nonfinite(*std::exchange(unraised, std::nullopt));
  check_replays();
}

}  // namespace lowtide
