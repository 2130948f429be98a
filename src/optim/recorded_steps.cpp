// Records steps on a capturing queue and prepares their replays.
#include <algorithm>

#include "backend/gradient_reader.h"
#include "backend/replays.h"
#include "core/error.h"
#include "optim/async_save.h"
#include "optim/device_steps.h"
#include "optim/gradient_norm.h"

namespace lowtide {

void DeviceSteps::require_in_place() const {
  for (const std::unique_ptr<Residence>& residence : table_.residences) {
    const DeviceStore* const store = residence->device_store();
    LT_REQUIRE(!store || store->stays(),
               "got a step to record or replay with state that is paged, managed or offloaded, wanted all of it in "
               "device memory: give a budget that holds it, or do not capture the step");
  }
}

// Runs on a capturing queue: it waits for nothing, and only the backend allocates.
StepResult DeviceSteps::record(std::span<const Gradient> grads, const StepOptions& options, const Ballots* ballots) {
  LT_REQUIRE(!ballots && options.directions.empty() && options.updates.empty(),
             "got ballots, directions or updates on a queue that is being captured, wanted one that is not");
  LT_REQUIRE(!table_.waits_for_device(),
             "got a step of %s on a queue that is being captured, wanted one that is not: the host has to know norms "
             "of whole parameters, or sums over all, before each step",
             rule_info(table_.rule).name);
  const GradientReader* const reader = backend_.gradient_reader();
  LT_REQUIRE(!options.clip || (reader && reader->has_queued(*options.clip)),
             "got a step to record after a clip that the host computed, wanted one of this optimizer's "
             "queue_clip_grad_norm() inside the capture: every replay would clip by the same factor");
  StepOptions own = options;
  const std::shared_ptr<QueuedClip> clip = take_clip(own);
  const LossScaling& scaling = options.scaling;
  LT_REQUIRE(!scaling.scale || scaling.found_inf, "got a loss scale without found_inf, wanted both");
  LT_REQUIRE(!scaling.found_inf || reader,
             "got loss scaling on the device for a backend that reads no gradients there");
  if (scaling.found_inf) {
    check_grad_scale(options.grad_scale);
    own.grad_scale = 1;
  }
  StepPlan plan(table_, buffers_, grads, own);
  require_in_place();
  for (size_t i = 0; i < grads.size(); ++i)
    LT_REQUIRE(!grads[i].data || table_.params[i].has_state || table_.params[i].layout.numel == 0,
               "got a step to record for parameter %zu, which has no state yet, wanted a step or place_states() first",
               i);
  plan.gather();
  LT_REQUIRE(!table_.overlap(plan.params()),
             "got parameters whose memory overlaps, which cannot be recorded: make them one parameter");
  auto recording = std::make_unique<Recording>();
  recording->scales = scaling.found_inf;
  recording->decides = recording->scales || plan.searches();
  if (clip || recording->scales) recording->clipped_scale = options.grad_scale;
  recording->guard = queue_guard(plan, clip, recording->decides, options);
  LT_REQUIRE(
      recording->guard || !recording->decides || plan.items().empty(),
      "got a step to record whose gradients the host has to check, wanted NonFinite::kPropagate or assume_finite");
  plan.set_guard(recording->guard.get());
  if (table_.needs_norms && plan.place_norms()) plan.clear_norms();
  plan.append_parts_in_place(recording->parts);
  for (const Gradient& grad : grads) {
    const size_t dims = table_.params[recording->grads.size()].sizes.size();
    recording->grads.push_back(grad);
    if (grad.data && grad.strides)
      recording->grads.back().strides = recording->strides.emplace_back(grad.strides, grad.strides + dims).data();
  }
  recording->step = backend_.record_step(recording->parts, false, options.stream);
  recordings_.push_back(std::move(recording));
  return StepResult{};
}

StepResult DeviceSteps::prepare_replay(const StepOptions& options) {
  LT_REQUIRE(!options.clip, "got a clip for a replay, wanted none: a recorded step clips as it was recorded");
  require_no_scaling(options);
  LT_REQUIRE(!recordings_.empty(),
             "got a replay to prepare and no recorded step, wanted a step on a queue that is being captured first");
  resolve();
  raise_nonfinite();
  const Recording& recording = *recordings_.back();
  LT_REQUIRE(recording.grads.size() == table_.params.size(),
             "got a step that was recorded for %zu parameters and has %zu now: record it again", recording.grads.size(),
             table_.params.size());
  LT_REQUIRE(!device_.is_capturing(options.stream),
             "got a replay to prepare on a queue that is being captured, wanted it before the replay");
  StepOptions own = options;
  if (recording.clipped_scale) {
    LT_REQUIRE(options.grad_scale == *recording.clipped_scale,
               "got grad_scale=%g for a replay that clips, wanted %g, as recorded", options.grad_scale,
               *recording.clipped_scale);
    own.grad_scale = 1;
  }
  StepPlan plan(table_, buffers_, recording.grads, own);
  announce(options);
  table_.onload();
  require_in_place();
  if (table_.saving) table_.saving->before_any_change();
  plan.gather();
  plan.set_guard(recording.guard.get());
  if (table_.needs_norms) plan.place_norms();
  std::vector<StepItem> parts;
  plan.append_parts_in_place(parts);
  const auto same = [](const StepItem& a, const StepItem& b) {
    return a.param == b.param && a.param_dtype == b.param_dtype && a.rule == b.rule && a.codec == b.codec &&
           a.first_block == b.first_block && a.blocks == b.blocks && a.master.residual == b.master.residual &&
           std::equal(a.codes, a.codes + kMaxStates, b.codes);
  };
  LT_REQUIRE(std::equal(parts.begin(), parts.end(), recording.parts.begin(), recording.parts.end(), same),
             "got a parameter or state that has moved since the step was recorded: record it again");
  for (const std::unique_ptr<Residence>& residence : table_.residences)
    if (DeviceStore* const store = residence->device_store()) store->follow(options.stream);
  replay_queue_ = options.stream;
  replays_ = true;
  recording.step->prepare(parts, options.stream);
  const bool pending = recording.guard && recording.decides;
  if (pending) begin_pending(plan, recording.guard, true);
  if (pending && recording.scales) pending_->raises = false;
  plan.count_all();
  return StepResult{true, -1, pending};
}

void DeviceSteps::check_replays() const {
  if (recordings_.empty() || device_.is_lost()) return;
  bool all = true;
  for (const std::unique_ptr<Recording>& recording : recordings_) all = recording->step->all_prepared() && all;
  require_all_prepared(all);
}

}  // namespace lowtide
