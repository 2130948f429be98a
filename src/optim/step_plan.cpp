#include "optim/step_plan.h"

#include <algorithm>

#include "backend/plugin_backend.h"
#include "core/error.h"
#include "optim/gradient_norm.h"
#include "optim/hyper.h"

namespace lowtide {

StepPlan::StepPlan(ParamTable& table, StepBuffers& buffers, std::span<const Gradient> grads, const StepOptions& options,
                   const Ballots* ballots)
    : table_(table),
      buffers_(buffers),
      backend_(table.on.at_params),
      grads_(grads),
      options_(options),
      ballots_(ballots) {
  const size_t count = table.params.size(), directions = options.directions.size();
  LT_REQUIRE(grads.size() == count,
             "got %zu gradients for %zu parameters, wanted one each, with null data for no gradient", grads.size(),
             count);
  check_grad_scale(options.grad_scale);
  LT_REQUIRE(!options.stream || table.on.device, "got a stream for CPU parameters, wanted nullptr");
  LT_REQUIRE(
      directions == 0 || (directions == count && !ballots),
      "got memory for %zu directions and %zu parameters, wanted one for each parameter, or none (ballots take none)",
      directions, count);
  LT_REQUIRE(options.updates.empty() || (options.updates.size() == count && directions == 0 && !ballots),
             "got %zu updates and %zu parameters, wanted one for each parameter, or none (directions and ballots take "
             "none)",
             options.updates.size(), count);
  LT_REQUIRE(!options.preview || (directions && options.assume_finite),
             "got a preview, wanted it with directions, of gradients that are known to be finite");
  LT_REQUIRE(options.free_bytes >= -1, "got free_bytes=%lld, wanted 0 or more, or -1 to have the driver asked",
             ll(options.free_bytes));
  const char* const given = ballots                   ? "ballots"
                            : directions              ? "directions"
                            : options.updates.empty() ? nullptr
                                                      : "updates";
  if (!given) return;
  LT_REQUIRE(
      !table.needs_norms && !table.has_sums,
      "got %s of %s, wanted a rule that needs no norms of whole parameters or sums over all: adamw, lion, sgd ...",
      given, rule_info(table.rule).name);
  LT_REQUIRE(!table.has_average,
             "got %s of a rule whose states hold the learning rate, wanted another rule: adamw, lion, sgd ...", given);
  if (!ballots) return;
  check_signs(table, ballots->out, true, options.stream);
  LT_REQUIRE(!ballots->out.zeros, "got memory for the zeros of a ballot, which has none, wanted nullptr");
}

void StepPlan::gather() {
  table_.onload();
  const size_t count = table_.params.size();
  if (buffers_.items.size() < count) buffers_.items.resize(count);
  if (buffers_.params.size() < count) buffers_.params.resize(count, -1);
  buffers_.empty.clear();
  buffers_.wanted.clear();
  buffers_.norms.clear();
  if (table_.has_sums) begin_estimate();
  if (ballots_) make_targets();
  if (!options_.updates.empty()) make_move_args();
  const bool moves = !ballots_ && options_.directions.empty() && options_.updates.empty();
  bool known = moves && buffers_.made_at == table_.changes;
  buffers_.made_at = 0;
  size_t made = 0;
  for (size_t i = 0; i < count; ++i) {
    const Gradient& grad = grads_[i];
    if (!grad.data) continue;
    Parameter& param = table_.params[i];
    const Layout& layout = param.gradient_layout(grad, i);
    if (param.partially_written) table_.require_whole(param, i);
    LT_REQUIRE(!param.evaluating,
               "got a step while parameter %zu has the weights to evaluate, wanted the weights to train: call "
               "set_evaluating(false) (train() in Python) first",
               i);
    if (!param.has_state) {
      table_.place(i, grads_);
      known = false;
    }
    if (param.layout.numel == 0) {
      buffers_.empty.push_back(static_cast<int64_t>(i));
      continue;
    }
    StepItem& item = buffers_.items[made];
    int64_t& number = buffers_.params[made++];
    if (!known || number != static_cast<int64_t>(i)) {
      item = make_item(param, i);
      number = static_cast<int64_t>(i);
    }
    item.guard = nullptr;
    item.grad = grad.data;
    item.grad_dtype = grad.dtype;
    item.grad_layout = &layout;
    set_args(param, number, param.steps, param.uninitialized, item);
    if (streams(param)) buffers_.wanted.push_back(number);
  }
  items_ = {buffers_.items.data(), made};
  ordered_ = !ballots_ && table_.overlap();
  // A parameter that moved while it had no gradient is recorded with an address that another may have now.
  LT_REQUIRE(buffers_.wanted.empty() || !ordered_ || !table_.overlap(params()),
             "got parameters whose memory overlaps and whose state is in chunks, which cannot be stepped one after "
             "another: %s",
             table_.on.device ? "on a device, make them one parameter"
                              : "give them a budget of their own that holds their state");
  // Items beyond this step's were made before a change, or for signs: a longer step makes them again.
  if (!known) std::fill(buffers_.params.begin() + static_cast<ptrdiff_t>(made), buffers_.params.end(), -1);
  if (moves) buffers_.made_at = table_.changes;
}

void StepPlan::make_targets() {
  buffers_.targets.clear();
  int64_t first = 0;
  for (const Parameter& param : table_.params) {
    buffers_.targets.push_back({ballots_->out.bits, ballots_->out.presence, first, ballots_->zero_is_plus});
    first += round_up(param.layout.numel, kSignAlignment);
  }
}

void StepPlan::make_move_args() {
  Hyper hyper;
  hyper.momentum = 0;
  mover_ = effective_rule(find_rule("sgd"), hyper);
  buffers_.moves.reserve(table_.params.size());
  buffers_.move_args.clear();
  for (const GroupSpec& group : table_.groups) {
    hyper.lr = group.hyper.lr, hyper.weight_decay = group.hyper.weight_decay;
    rule_info(mover_).make_args(rule_input(hyper, 1, false), buffers_.move_args.emplace_back().bytes);
  }
}

StepItem StepPlan::make_item(Parameter& param, size_t number) {
  StepItem item;
  float* const direction = options_.directions.empty() ? nullptr : options_.directions[number];
  item.param_dtype = param.dtype;
  item.param_layout = &param.layout;
  if (ballots_) {
    item.ballot = &buffers_.targets[number];
  } else if (direction) {
    item.param = direction, item.param_dtype = DType::kF32, item.param_layout = &param.shape;
  } else {
    item.param = param.data;
  }
  item.rule = param.rule;
  item.codec = param.codec;
  item.origin = param.origin;
  std::copy(param.codes, param.codes + kMaxStates, item.codes);
  std::copy(param.scales, param.scales + kMaxStates, item.scales);
  if (!ballots_ && !direction && !update_of(static_cast<int64_t>(number))) item.master.kind = param.master;
  if (param.has_residual()) item.master.residual = param.codes[param.states(param.state_rule)];
  return item;
}

// Returns arguments made for an earlier item, or new ones.
const StepArgs& StepPlan::find_args(const Parameter& param, int64_t number, int64_t t, bool first, Moves moves) {
  const bool own = !buffers_.norms.empty();
  const Carried& before = carried_before(param, t);
  for (size_t i = own ? 0 : args_used_; i > 0; --i)
    if (buffers_.args[i - 1].fit(param, t, before, first, moves)) return buffers_.args[i - 1];
  if (args_used_ == buffers_.args.size()) buffers_.args.emplace_back();
  StepArgs& made = buffers_.args[args_used_++];
  const GroupSpec& group = table_.group_of(param);
  made = {param.group, param.rule, param.codec, t, before, first, own, moves, 0, 0.f, {}};
  made.grad_scale = static_cast<float>((group.hyper.maximize ? -1 : 1) * options_.grad_scale);
  StepTerms terms{t, first, moves, before, {}};
  if (rule_info(param.rule).sums)
    std::copy_n(sums_, 2, terms.norm);
  else if (own)
    std::copy_n(buffers_.norms[static_cast<size_t>(number)].of, 2, terms.norm);
  made.stochastic = param.make_args(group, terms, made.bytes);
  return made;
}

void StepPlan::set_guard(Guard* guard) {
  Guard* const own = own_guard(guard);
  for (StepItem& item : items_) item.guard = own;
}

StepResult StepPlan::refuse(int64_t bad) const {
  const int64_t param = params()[static_cast<size_t>(bad)];
  if (table_.nonfinite == NonFinite::kRaise) fail_nonfinite(param);
  return StepResult{false, param};
}

void StepPlan::fail_nonfinite(int64_t param) {
  fail(ErrorKind::kInvalidArgument,
       "the gradient of parameter %lld holds a NaN, an infinity or a magnitude of 2^62 and above; nothing was changed",
       ll(param));
}

}  // namespace lowtide
