// Hyper-parameters: defaults per rule and the checks that every interface shares.
#include "optim/hyper.h"

#include <cmath>

#include "core/error.h"

namespace lowtide {
namespace {

enum Range { kZeroOrMore, kBelowOne, kPositive, kFinite, kFlag };
constexpr const char* kRanges[] = {"0 or more", "0 <= x < 1", "above 0", "finite", ""};

bool fits_float(double value) { return std::isfinite(static_cast<float>(value)); }

void check_range(const char* name, double value, Range range) {
  switch (range) {
    case kZeroOrMore:
      LT_REQUIRE(std::isfinite(value) && value >= 0, "got %s=%g, wanted a finite number of 0 or more", name, value);
      LT_REQUIRE(fits_float(value), "got %s=%g, wanted a number that float32 can hold", name, value);
      return;
    case kBelowOne:
      LT_REQUIRE(value >= 0 && value < 1, "got %s=%g, wanted 0 <= %s < 1", name, value, name);
      return;
    case kPositive:
      LT_REQUIRE(static_cast<float>(value) > 0 && fits_float(value),
                 "got %s=%g, wanted %s > 0 as float32 (with 0, a gradient that was always zero would give 0/0)", name,
                 value, name);
      return;
    case kFinite:
      LT_REQUIRE(fits_float(value), "got %s=%g, wanted a finite number", name, value);
      return;
    case kFlag:
      return;
  }
}

}  // namespace

const char* range_of(const std::string& hyper_parameter) {
#define LT_HYPER(type, name, value, range) \
  if (hyper_parameter == #name) return kRanges[range];
#include "lowtide/hyper.def"
#undef LT_HYPER
  return "";
}

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

RuleInput rule_hyper(const Hyper& h, int64_t t, bool first) {
  RuleInput out{};
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
#define LT_HYPER(type, name, value, range) check_range(#name, h.name, range);
#include "lowtide/hyper.def"
#undef LT_HYPER
  LT_REQUIRE(rule != "rmsprop" || h.alpha < 1, "got alpha=%g for RMSprop, wanted 0 <= alpha < 1", h.alpha);
  LT_REQUIRE(
      fits_float(h.lr / (1 - h.beta1)) && fits_float(h.lr * h.weight_decay),
      "got lr=%g with beta1=%g and weight_decay=%g, wanted lr / (1 - beta1) and lr * weight_decay that float32 can "
      "hold",
      h.lr, h.beta1, h.weight_decay);
  LT_REQUIRE(rule != "ademamix" || fits_float(h.lr * h.alpha),
             "got lr=%g with alpha=%g, wanted lr * alpha that float32 can hold", h.lr, h.alpha);
  LT_REQUIRE(!h.nesterov || (rule != "sgd" && rule != "lars") || (h.momentum > 0 && h.dampening == 0),
             "got nesterov with momentum=%g and dampening=%g for %s, wanted momentum > 0 and dampening = 0", h.momentum,
             h.dampening, rule.c_str());
}

}  // namespace lowtide
