#include "optim/mu_product.h"

#include <cstring>
#include <type_traits>

#include "core/error.h"
#include "optim/optimizer_impl.h"

namespace lowtide {
namespace {
#include "portable/portable.h"

constexpr double kNothing = 0x1p-60;  // 1 less this is 1: as in the rule

constexpr bool kHasProduct[] = {
    // by number of the rule
#define LT_RULE(number, name, type) std::is_base_of_v<NadamBase, type>,
#include "portable/rules.def"
#undef LT_RULE
};

double times_mu(double product, const Hyper& hyper, int64_t t) {
  return product > kNothing ? product * NadamBase::mu(hyper, static_cast<double>(t)) : product;
}

}  // namespace

double mu_product_of(const Hyper& hyper, int64_t steps) {
  double product = 1;
  for (int64_t t = 1; t <= steps && product > kNothing; ++t) product = times_mu(product, hyper, t);
  return product;
}

bool has_mu_product(int rule) { return kHasProduct[rule]; }

double next_mu_product(const Parameter& param, const Hyper& hyper) {
  const bool known = param.mu_product != kAsNow;
  return times_mu(known ? param.mu_product : mu_product_of(hyper, param.steps), hyper, param.steps + 1);
}

void correct_arguments(const Hyper& hyper, int64_t t, double before, std::byte* args) {
  const double product = times_mu(before, hyper, t), as_now = mu_product_of(hyper, t);
  if (product == as_now) return;  // and not a bit changes
  const double next = NadamBase::mu(hyper, static_cast<double>(t + 1));
  NadamArgs made;
  std::memcpy(&made, args, sizeof made);
  made.from_m = static_cast<float>(made.from_m * (1 - as_now * next) / (1 - product * next));
  made.from_g = static_cast<float>(made.from_g * (1 - as_now) / (1 - product));
  std::memcpy(args, &made, sizeof made);
}

double mu_product(const Optimizer& of, int64_t param) {
  auto& impl = OptimizerEnv::impl(const_cast<Optimizer&>(of));
  impl.resolve();
  const Parameter& at = impl.table.at(param);
  if (!has_mu_product(at.rule) || at.mu_product != kAsNow) return at.mu_product;
  return mu_product_of(impl.table.group_of(at).hyper, at.steps);
}

void set_mu_product(Optimizer& of, int64_t param, double product) {
  auto& impl = OptimizerEnv::impl(of);
  const OptimizerEnv::Call call(impl);
  impl.resolve();
  LT_REQUIRE(product > 0 && product <= 1, "got a product of mu of %g, wanted above 0 and at most 1", product);
  if (Parameter& at = impl.table.at(param); has_mu_product(at.rule)) at.mu_product = product;
}

}  // namespace lowtide
