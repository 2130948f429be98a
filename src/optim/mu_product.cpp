#include "optim/mu_product.h"

#include <cstring>
#include <type_traits>

#include "core/error.h"
#include "optim/optimizer_impl.h"

namespace lowtide {
namespace {
#include "portable/portable.h"

constexpr bool kHasProduct[] = {
// by number of the rule
#define LT_RULE(number, name, type) std::is_base_of_v<NadamBase, type>,
#include "portable/rules.def"
#undef LT_RULE
};

}  // namespace

const double kNoMuProduct = NadamBase::kNoProduct;

double mu_product_of(const Hyper& hyper, int64_t steps) {
  return NadamBase::mu_product(hyper, static_cast<double>(steps));
}

bool has_mu_product(int rule) { return kHasProduct[rule]; }

double next_mu_product(const Parameter& param, const Hyper& hyper) {
  const bool known = param.mu_product != kAsNow;
  const double before = known ? param.mu_product : mu_product_of(hyper, param.steps);
  return NadamBase::times_mu(before, hyper, static_cast<double>(param.steps + 1));
}

void correct_arguments(const Hyper& hyper, int64_t t, double before, std::byte* args) {
  const double product = NadamBase::times_mu(before, hyper, static_cast<double>(t));
  const double as_now = mu_product_of(hyper, t);
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
  const OptimizerEnv::Inside inside(impl);
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
