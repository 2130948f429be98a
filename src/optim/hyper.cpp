// Hyper-parameters: defaults per rule and the checks that every interface shares.
#include "optim/hyper.h"

#include <cmath>

#include "backend/catalog.h"
#include "core/error.h"

namespace lowtide {

Hyper default_hyper(const std::string& rule) {
  find_rule(rule);
  Hyper hyper;
  if (rule == "adamw") hyper.weight_decay = 1e-2;
  if (rule == "lion") hyper.lr = 1e-4, hyper.beta2 = 0.99;
  if (rule == "adagrad") hyper.lr = 1e-2, hyper.eps = 1e-10;
  if (rule == "rmsprop") hyper.lr = 1e-2;
  if (rule == "ademamix") hyper.alpha = 5, hyper.weight_decay = 1e-2;
  if (rule == "lamb") hyper.eps = 1e-6, hyper.weight_decay = 1e-2;
  if (rule == "lars") hyper.momentum = 0.9;
  return hyper;
}

RuleHyper rule_hyper(const Hyper& h, int64_t t, bool first) {
  RuleHyper out{};
  out.lr = h.lr, out.beta1 = h.beta1, out.beta2 = h.beta2, out.beta3 = h.beta3, out.eps = h.eps;
  out.weight_decay = h.weight_decay, out.momentum = h.momentum, out.dampening = h.dampening;
  out.nesterov = h.nesterov, out.alpha = h.alpha, out.t_alpha = h.t_alpha, out.t_beta3 = h.t_beta3;
  out.lr_decay = h.lr_decay, out.initial = h.initial_accumulator_value, out.momentum_decay = h.momentum_decay;
  out.trust_coefficient = h.trust_coefficient, out.max_unorm = h.max_unorm;
  out.t = static_cast<double>(t), out.first = first;
  return out;
}

RuleVariant variant_of(const Hyper& hyper) {
  return {hyper.momentum != 0, hyper.nesterov, hyper.amsgrad, hyper.centered, hyper.max_unorm > 0};
}

void check_hyper(const std::string& rule, const Hyper& h) {
  const auto at_least_zero = [](const char* name, double value) {
    LT_REQUIRE(std::isfinite(value) && value >= 0, "got %s=%g, wanted a finite number of 0 or more", name, value);
    LT_REQUIRE(std::isfinite(static_cast<float>(value)), "got %s=%g, wanted a number that float32 can hold", name,
               value);
  };
  at_least_zero("lr", h.lr);
  at_least_zero("weight_decay", h.weight_decay);
  at_least_zero("momentum", h.momentum);
  at_least_zero("alpha", h.alpha);
  at_least_zero("t_alpha", h.t_alpha);
  at_least_zero("t_beta3", h.t_beta3);
  at_least_zero("lr_decay", h.lr_decay);
  at_least_zero("initial_accumulator_value", h.initial_accumulator_value);
  at_least_zero("momentum_decay", h.momentum_decay);
  at_least_zero("trust_coefficient", h.trust_coefficient);
  at_least_zero("max_unorm", h.max_unorm);
  LT_REQUIRE(h.beta1 >= 0 && h.beta1 < 1, "got beta1=%g, wanted 0 <= beta1 < 1", h.beta1);
  LT_REQUIRE(h.beta2 >= 0 && h.beta2 < 1, "got beta2=%g, wanted 0 <= beta2 < 1", h.beta2);
  LT_REQUIRE(rule != "rmsprop" || h.alpha < 1, "got alpha=%g for RMSprop, wanted 0 <= alpha < 1", h.alpha);
  LT_REQUIRE(h.beta3 >= 0 && h.beta3 < 1, "got beta3=%g, wanted 0 <= beta3 < 1", h.beta3);
  const auto fits = [](double value) { return std::isfinite(static_cast<float>(value)); };
  LT_REQUIRE(
      fits(h.lr / (1 - h.beta1)) && fits(h.lr * h.weight_decay),
      "got lr=%g with beta1=%g and weight_decay=%g, wanted lr / (1 - beta1) and lr * weight_decay that float32 can "
      "hold",
      h.lr, h.beta1, h.weight_decay);
  LT_REQUIRE(rule != "ademamix" || fits(h.lr * h.alpha),
             "got lr=%g with alpha=%g, wanted lr * alpha that float32 can hold", h.lr, h.alpha);
  LT_REQUIRE(std::isfinite(h.eps) && static_cast<float>(h.eps) > 0 && std::isfinite(static_cast<float>(h.eps)),
             "got eps=%g, wanted eps > 0 as float32 (with 0, a gradient that was always zero would give 0/0)", h.eps);
  LT_REQUIRE(std::isfinite(static_cast<float>(h.dampening)), "got dampening=%g, wanted a finite number", h.dampening);
  LT_REQUIRE(!h.nesterov || (rule != "sgd" && rule != "lars") || (h.momentum > 0 && h.dampening == 0),
             "got nesterov with momentum=%g and dampening=%g for %s, wanted momentum > 0 and dampening = 0", h.momentum,
             h.dampening, rule.c_str());
}

}  // namespace lowtide
