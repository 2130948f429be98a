// Options of a rule that make another of rules.def out of it.
#pragma once

#include <string>

#include "lowtide/optimizer.h"
#include "support/random.h"

namespace lowtide::testing {

// The rule's defaults, with a random one of its variants; SGD with momentum.
inline Hyper random_variant(const std::string& rule, Rng& rng) {
  Hyper hyper = default_hyper(rule);
  if (rule == "sgd" || rule == "lars") hyper.momentum = 0.9;
  if (rule == "lamb" || rule == "lars") hyper.max_unorm = rng.chance(0.5) ? 0.1 : 0;
  if (rule == "rmsprop") hyper.momentum = rng.chance(0.5) ? 0.9 : 0, hyper.centered = rng.chance(0.5);
  if (rule == "adam" || rule == "adamw") hyper.amsgrad = rng.chance(0.4);
  if ((rule == "adam" || rule == "adamw") && !hyper.amsgrad) hyper.nesterov = rng.chance(0.4);
  if (rule == "schedulefree")
    hyper.warmup_steps = static_cast<double>(rng.below(6)), hyper.r = static_cast<double>(rng.below(3));
  if (rule == "ademamix") hyper.t_alpha = hyper.t_beta3 = static_cast<double>(rng.below(10));
  return hyper;
}

}  // namespace lowtide::testing
