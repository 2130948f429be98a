// Hyper-parameters: defaults per rule and the checks that every interface shares.
#include "optim/hyper.h"

#include <cmath>
#include <cstring>
#include <type_traits>

#include "core/error.h"

namespace lowtide {
namespace {

enum Range { kZeroOrMore, kBelowOne, kPositive, kOneOrMore, kFinite, kFlag };

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
    case kOneOrMore:
      LT_REQUIRE(value >= 1, "got %s=%g, wanted 1 or more, or infinity", name, value);
      return;
    case kFinite:
      LT_REQUIRE(fits_float(value), "got %s=%g, wanted a finite number", name, value);
      return;
    case kFlag:
      return;
  }
}

}  // namespace

Hyper default_hyper(const std::string& rule) {
  Hyper hyper;
  for (const RuleHyper& own : rule_info(find_rule(rule)).hyper)
    for_each_hyper(hyper, [&](const char* name, auto& value) {
      if (std::strcmp(name, own.name) == 0) value = static_cast<std::remove_reference_t<decltype(value)>>(own.value);
    });
  return hyper;
}

RuleInput rule_input(const Hyper& hyper, int64_t t, bool first) {
  RuleInput out;
#define LT_HYPER(type, name, value, range) out.name = hyper.name;
#include "lowtide/hyper.def"
#undef LT_HYPER
  out.t = static_cast<double>(t), out.first = first;
  return out;
}

void check_hyper(int rule, const Hyper& h) {
#define LT_HYPER(type, name, value, range) check_range(#name, h.name, range);
#include "lowtide/hyper.def"
#undef LT_HYPER
  LT_REQUIRE(
      fits_float(h.lr / (1 - h.beta1)) && fits_float(h.lr * h.weight_decay),
      "got lr=%g with beta1=%g and weight_decay=%g, wanted lr / (1 - beta1) and lr * weight_decay that float32 can "
      "hold",
      h.lr, h.beta1, h.weight_decay);
  const std::string refusal = rule_info(rule).refusal(h);
  LT_REQUIRE(refusal.empty(), "%s", refusal.c_str());
}

}  // namespace lowtide
