#include "optim/carried.h"

#include <cmath>

#include "core/error.h"
#include "optim/hyper.h"
#include "optim/optimizer_impl.h"

namespace lowtide {

void check_carried(int number_of_rule, const Carried& numbers, const std::string& where) {
  const RuleInfo& rule = rule_info(number_of_rule);
  for (int k = 0; k < carried_count(number_of_rule); ++k) {
    const double number = numbers.of[k], least = rule.least_carried(k), most = rule.most_carried(k);
    const bool counts = k == rule.switches;
    LT_REQUIRE(number >= least && number <= most && (!counts || std::floor(number) == number),
               "got %s=%g for %s, wanted a%s number from %g to %g", rule.carried_names[static_cast<size_t>(k)], number,
               where.c_str(), counts ? " whole" : "", least, most);
  }
}

Carried next_carried(int rule, const Hyper& hyper, int64_t t, const Carried& before, const double (&sums)[2]) {
  Carried out;
  if (!carried_count(rule)) return out;
  RuleInput in = rule_input(hyper, t, false);
  for (int k = 0; k < kMaxCarried; ++k) in.carried[k] = before.of[k];
  in.norm[0] = sums[0], in.norm[1] = sums[1];
  rule_info(rule).carry(in, out.of);
  return out;
}

Carried next_carried(const Parameter& param, const Hyper& hyper) {
  return next_carried(param.rule, hyper, param.steps + 1, param.carried, {});
}

Carried carried_as_now(int rule, const Hyper& hyper, int64_t steps) { return next_carried(rule, hyper, steps, {}, {}); }

const std::vector<const char*>& carried_names(const Optimizer& of, int64_t param) {
  return rule_info(OptimizerEnv::impl(const_cast<Optimizer&>(of)).table.at(param).rule).carried_names;
}

Carried carried_of(const Optimizer& of, int64_t param) {
  auto& impl = OptimizerEnv::impl(const_cast<Optimizer&>(of));
  const OptimizerEnv::Inside inside(impl);
  impl.resolve();
  const Parameter& at = impl.table.at(param);
  const bool shares = rule_info(at.rule).sums;
  if (at.carried.known() && (!shares || has_begun(at.carried))) return at.carried;
  if (shares)  // an added or a reset parameter steps with the others' estimate
    if (const Carried shared = impl.table.shared_estimate(); shared.known()) return shared;
  Carried out = carried_as_now(at.rule, impl.table.group_of(at).hyper, at.steps);
  if (const int k = rule_info(at.rule).switches; k >= 0) out.of[k] = at.carried.of[k];
  return out;
}

void set_carried(Optimizer& of, int64_t param, const Carried& numbers) {
  auto& impl = OptimizerEnv::impl(of);
  const OptimizerEnv::Call call(impl);
  impl.resolve();
  Parameter& at = impl.table.at(param);
  if (!carried_count(at.rule)) return;
  check_carried(at.rule, numbers, "parameter " + std::to_string(param));
  at.carried = numbers;
}

}  // namespace lowtide
