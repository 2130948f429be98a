// Steps that are recorded on a capturing queue, and what their replays need.
#include "optim/optimizer_impl.h"

namespace lowtide {

StepResult Optimizer::prepare_replay(const StepOptions& options) {
  const Exclusive guard(impl_->busy);
  return impl_->prepare_replay(options);
}

void Optimizer::Impl::require_in_place() const {
  for (const std::unique_ptr<Home>& home : homes) {
    const DeviceStore* const store = home->device_store();
    LT_REQUIRE(!store || store->stays(),
               "got a step to record or replay with state that is paged, managed or offloaded, wanted all of it in "
               "device memory: give a budget that holds it, or do not capture the step");
  }
}

// What step_paged() would step, all of it in one list: a part for each piece.
void Optimizer::Impl::gather_parts(std::vector<StepItem>& parts) {
  std::vector<const StepItem*> streamed(slots.size(), nullptr);
  for (size_t i = 0; i < items.size(); ++i) {
    const int64_t param = item_params[i];
    if (streams(slots[static_cast<size_t>(param)]))
      streamed[static_cast<size_t>(param)] = &items[i];
    else
      parts.push_back(items[i]);
  }
  for (const std::unique_ptr<Home>& home : homes)
    if (const DeviceStore* const store = home->device_store())
      store->visit_in_place([&](std::span<const Store::PlacedChunk> chunks) { append_parts(chunks, streamed, parts); });
}

// Called on a capturing queue: nothing is waited for, and nothing allocated but by the backend.
StepResult Optimizer::Impl::record(std::span<const Gradient> grads, const StepOptions& options) {
  LT_REQUIRE(!voting && options.directions.empty(),
             "got ballots or directions on a queue that is being captured, wanted one that is not");
  LT_REQUIRE(!needs_norms(),
             "got a step of %s on a queue that is being captured, wanted one that is not: the host has to know norms "
             "of whole parameters before each step",
             name_of(rule).c_str());
  check_arguments(grads, options);
  require_in_place();
  for (size_t i = 0; i < slots.size(); ++i)
    LT_REQUIRE(!grads[i].data || slots[i].has_state || slots[i].layout.numel == 0,
               "got a step to record for parameter %zu, which has no state yet, wanted a step or place_states() before",
               i);
  prepare(grads, options);
  LT_REQUIRE(!parameters_overlap(true),
             "got parameters whose memory overlaps, which cannot be recorded: make them one parameter");
  auto recording = std::make_unique<Recording>();
  if (searches(options)) {
    recording->guard = backend->queue_guard(items, options.stream);
    LT_REQUIRE(recording->guard || items.empty(),
               "got a step to record that the host has to look at the gradients for, wanted NonFinite::kPropagate or "
               "assume_finite");
  }
  for (StepItem& item : items) item.guard = recording->guard.get();
  gather_parts(recording->parts);
  for (const Gradient& grad : grads) {
    const size_t dims = slots[recording->grads.size()].sizes.size();
    recording->grads.push_back(grad);
    if (grad.data && grad.strides)
      recording->grads.back().strides = recording->strides.emplace_back(grad.strides, grad.strides + dims).data();
  }
  recording->step = backend->record_step(recording->parts, false, options.stream);
  recordings.push_back(std::move(recording));
  return StepResult{};
}

StepResult Optimizer::Impl::prepare_replay(const StepOptions& options) {
  LT_REQUIRE(!recordings.empty(),
             "got a replay to prepare and no recorded step, wanted a step on a queue that is being captured before");
  resolve_and_raise();
  require_replayed();
  const Recording& recording = *recordings.back();
  LT_REQUIRE(recording.grads.size() == slots.size(),
             "got a step that was recorded for %zu parameters and has %zu now: record it again", recording.grads.size(),
             slots.size());
  LT_REQUIRE(!backend->device()->is_capturing(options.stream),
             "got a replay to prepare on a queue that is being captured, wanted it before the replay");
  check_arguments(recording.grads, options);
  tell_homes(options);
  onload();
  require_in_place();
  prepare(recording.grads, options);
  for (StepItem& item : items) item.guard = recording.guard.get();
  std::vector<StepItem> parts;
  gather_parts(parts);
  const auto same = [](const StepItem& a, const StepItem& b) {
    return a.param == b.param && a.param_dtype == b.param_dtype && a.rule == b.rule && a.codec == b.codec &&
           a.first_block == b.first_block && a.blocks == b.blocks && a.master.residual == b.master.residual &&
           std::equal(a.codes, a.codes + kMaxStates, b.codes);
  };
  LT_REQUIRE(std::equal(parts.begin(), parts.end(), recording.parts.begin(), recording.parts.end(), same),
             "got a parameter or state that has moved since the step was recorded: record it again");
  for (const std::unique_ptr<Home>& home : homes)
    if (DeviceStore* const store = home->device_store()) store->follow(options.stream);
  replay_queue = options.stream;
  replays = true;
  recording.step->prepare(parts, options.stream);
  if (recording.guard) begin_pending(recording.guard, true);
  for (const int64_t param : item_params) {
    Parameter& slot = slots[static_cast<size_t>(param)];
    if (!streams(slot)) count({&param, 1});
    for (Progress& piece : slot.progress) piece.done = streams(slot);
  }
  count(empty_params);
  settle();
  ++steps;
  return StepResult{true, -1, recording.guard != nullptr};
}

// Of the last recording: who records again has given up those before.
void Optimizer::Impl::require_replayed() const {
  LT_REQUIRE(recordings.back()->step->was_replayed(),
             "got a call that needs the outcome of a replay after prepare_replay() and before that replay, wanted the "
             "replay first: its step is counted; replay it, or record the step again");
}

void Optimizer::Impl::check_replays() {
  if (recordings.empty() || backend->device()->is_lost()) return;
  bool all = true;
  for (const std::unique_ptr<Recording>& recording : recordings) all = recording->step->all_prepared() && all;
  LT_REQUIRE(all, "got a replay of a recorded step without prepare_replay() before it: it has changed nothing");
}

}  // namespace lowtide
