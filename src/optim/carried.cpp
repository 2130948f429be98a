#include "optim/carried.h"

#include <cmath>

#include "core/error.h"
#include "optim/hyper.h"
#include "optim/optimizer_impl.h"

namespace lowtide {
namespace {
#include "portable/portable.h"

Carried after(int rule, const Hyper& hyper, int64_t t, const Carried& before) {
  Carried out;
  if (!carried_count(rule)) return out;
  RuleInput in = rule_input(hyper, t, false);
  for (int k = 0; k < kMaxCarried; ++k) in.carried[k] = before.of[k];
  rule_info(rule).carry(in, out.of);
  return out;
}

}  // namespace

const double kNoMuProduct = NadamBase::kNoProduct;

Carried next_carried(const Parameter& param, const Hyper& hyper) {
  return after(param.rule, hyper, param.steps + 1, param.carried);
}

Carried carried_as_now(int rule, const Hyper& hyper, int64_t steps) { return after(rule, hyper, steps, {}); }

const std::vector<const char*>& carried_names(const Optimizer& of, int64_t param) {
  return rule_info(OptimizerEnv::impl(const_cast<Optimizer&>(of)).table.at(param).rule).carried_names;
}

Carried carried_of(const Optimizer& of, int64_t param) {
  auto& impl = OptimizerEnv::impl(const_cast<Optimizer&>(of));
  const OptimizerEnv::Inside inside(impl);
  impl.resolve();
  const Parameter& at = impl.table.at(param);
  if (at.carried.known()) return at.carried;
  Carried out = carried_as_now(at.rule, impl.table.group_of(at).hyper, at.steps);
  if (const int k = rule_info(at.rule).switches; k >= 0) out.of[k] = at.carried.of[k];
  return out;
}

void set_carried(Optimizer& of, int64_t param, const Carried& numbers) {
  auto& impl = OptimizerEnv::impl(of);
  const OptimizerEnv::Call call(impl);
  impl.resolve();
  Parameter& at = impl.table.at(param);
  const RuleInfo& rule = rule_info(at.rule);
  for (int k = 0; k < carried_count(at.rule); ++k) {
    const double number = numbers.of[k], most = rule.most_carried(k);
    const bool counts = k == rule.switches;
    LT_REQUIRE(number >= 0 && number <= most && (!counts || std::floor(number) == number),
               "got %s=%g for parameter %lld, wanted a%s number from 0 to %g",
               rule.carried_names[static_cast<size_t>(k)], number, ll(param), counts ? " whole" : "", most);
  }
  if (carried_count(at.rule)) at.carried = numbers;
}

}  // namespace lowtide
