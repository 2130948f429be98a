// Sums of terms over all parameters, for rules whose steps have one estimate in common (Prodigy's d): a pass before the
// step over what it will read, so that sums that overflow, or a disk that cannot be read, change nothing. (A step's own
// pass could add the sums for the next one, since d' is in its step only times eps.) Sums are exact, so no bit depends
// on threads, chunks, tiers, devices or shards. All parameters carry the estimate, so that each of them can be saved
// alone.
#include <cmath>
#include <string_view>

#include "core/error.h"
#include "optim/carried.h"
#include "optim/gradient_norm.h"
#include "optim/hyper.h"
#include "optim/optimizer_impl.h"
#include "optim/step_plan.h"

namespace lowtide {
namespace {

// Groups with one estimate may differ in these hyper-parameters.
bool may_differ(std::string_view name) { return name == "lr" || name == "eps" || name == "weight_decay"; }

double value_of(const Hyper& hyper, std::string_view wanted) {
  double found = 0;
  for_each_hyper(hyper, [&](const char* name, const auto& value) {
    if (name == wanted) found = static_cast<double>(value);
  });
  return found;
}

}  // namespace

Carried ParamTable::shared_estimate() const {
  const Carried* found = nullptr;
  for (size_t i = 0; i < params.size(); ++i) {
    const Parameter& param = params[i];
    if (!rule_info(param.rule).sums || !param.carried.known()) continue;
    if (!found) found = &param.carried;
    const std::vector<const char*>& names = rule_info(param.rule).carried_names;
    for (size_t k = 0; k < names.size(); ++k)
      LT_REQUIRE(found->of[k] == param.carried.of[k],
                 "got %s=%.17g for parameter %zu and %s=%.17g for one before it, wanted one for all: load the state of "
                 "all parameters from one run",
                 names[k], param.carried.of[k], i, names[k], found->of[k]);
  }
  return found && has_begun(*found) ? *found : Carried{};
}

void ParamTable::share_estimate(const Carried& now) {
  // A parameter that has no state and waits for none may stand in for one that another optimizer steps. It would keep
  // the estimate when that one is reset or loaded.
  for (Parameter& param : params)
    if (rule_info(param.rule).sums && (param.wants_state || param.has_state || param.carried.known()))
      param.carried = now;
}

void StepPlan::begin_estimate() {
  estimating_ = -1;
  // The first group with gradients that moves; else the first that moves, as other optimizers of the same model have
  // gradients then; else the first one.
  const auto rank = [&](size_t i) {
    return (table_.group_of(table_.params[i]).hyper.lr != 0) * 2 + (grads_[i].data != nullptr);
  };
  int best = -1, checked = -1;
  for (size_t i = 0; i < table_.params.size(); ++i) {
    const Parameter& param = table_.params[i];
    if (!rule_info(param.rule).sums) continue;
    if (grads_[i].data && param.group != checked) {
      if (checked >= 0) check_alike(static_cast<size_t>(checked), static_cast<size_t>(param.group));
      checked = param.group;
    }
    if (rank(i) > best) best = rank(i), estimating_ = param.group;
  }
  began_ = table_.shared_estimate();
  table_.share_estimate(began_);
}

void StepPlan::check_alike(size_t one, size_t other) const {
  const GroupSpec &mine = table_.groups[other], &first = table_.groups[one];
  for (const RuleHyper& read : rule_info(mine.rule).hyper) {
    if (may_differ(read.name)) continue;
    const double got = value_of(mine.hyper, read.name), wanted = value_of(first.hyper, read.name);
    LT_REQUIRE(got == wanted,
               "got %s=%g in group %zu and %s=%g in group %zu of %s, wanted the same: one d serves all groups",
               read.name, got, other, read.name, wanted, one, rule_info(mine.rule).name);
  }
}

TermSums StepPlan::sum_terms() {
  TermSums sums;
  pass_together(
      [&](const StepItem&, const Parameter& param) {
        if (!is_summed(param)) return Read::kNot;
        return streams(param) ? Read::kByChunks : Read::kAtOnce;
      },
      [&](std::span<const StepItem> items) { backend_.sum_terms(items, table_.on.threads, sums, options_.stream); });
  return sums;
}

StepResult StepPlan::refuse_sums(const TermSums& sums) const {
  if (table_.nonfinite != NonFinite::kRaise) return StepResult{false, -1};
  const bool s = !std::isfinite(sums.second.value()), along = !std::isfinite(sums.below.value() + sums.above.value());
  fail(ErrorKind::kInvalidArgument,
       "the sum %s over all parameters has overflowed: got a term above 3.4e38, the most that float32 holds, though no "
       "gradient is infinite or NaN, wanted smaller gradients or d / d0: lower the loss or clip; nothing was changed",
       s && along ? "of |s| or of g (p0 - p)"
       : s        ? "of |s|"
                  : "of g (p0 - p)");
}

void StepPlan::take_sums(const TermSums& sums) {
  sums.put(sums_);
  if (estimating_ < 0) return;
  const GroupSpec& group = table_.groups[static_cast<size_t>(estimating_)];
  estimate_ = next_carried(effective_rule(group.rule, group.hyper), group.hyper, 1, began_, sums_);
  args_used_ = 0, args_ = nullptr;
  for (size_t i = 0; i < items_.size(); ++i) {
    const Parameter& param = table_.params[static_cast<size_t>(params()[i])];
    set_args(param, params()[i], param.steps, param.uninitialized, items_[i]);
  }
}

TermSums term_sums(Optimizer& of, std::span<const Gradient> grads, const StepOptions& options) {
  auto& impl = OptimizerEnv::impl(of);
  const OptimizerEnv::Call call(impl);
  if (impl.on_device) impl.on_device->resolve_and_raise();
  const StepOptions own = without_clip(options);
  StepPlan plan(impl.table, impl.buffers, grads, own);
  if (impl.on_device) impl.on_device->announce(options);
  plan.gather();
  return plan.sum_terms();
}

}  // namespace lowtide
