// Trajectories of 100 steps with float32 state against the papers' formulas in double.
//
// Bound, with u = ulp of the largest |p|. p itself is rounded once a step, by the subtraction: half a u. Rounding of
// what is subtracted: its relative error is at most (steps + 12) * 2^-24 (the float32 betas enter every one of `steps`
// products; a dozen operations after that), of at most 8 lr for these gradients. Adam's and SGD's L2 term feeds p's
// error back through the gradient, a factor below 1 + 8 lr * weight_decay a step: 1.1 in all. So after T steps
//   |error| <= 1.1 T (u / 2 + 8 lr (T + 12) 2^-24).
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "lowtide/optimizer.h"
#include "support/compare.h"
#include "support/random.h"

namespace lowtide::testing {
namespace {

constexpr int kSteps = 100;
constexpr int64_t kElements = 5000;

// One element in double. `mistake` turns one detail of the formula into what is often written instead.
struct Element {
  double p = 0, a = 0, b = 0;  // a, b: states
  bool near_sign_change = false;

  void step(const std::string& rule, const Hyper& h, double g, int t, bool mistake) {
    if (h.maximize) g = -g;
    if (rule == "adam" || rule == "adamw") {
      if (rule == "adam")
        g += h.weight_decay * p;
      else
        p -= h.lr * h.weight_decay * p;
      a = h.beta1 * a + (1 - h.beta1) * g;
      b = h.beta2 * b + (1 - h.beta2) * g * g;
      const double corrected_m = a / (1 - std::pow(h.beta1, t));
      const double corrected_v = mistake ? b : b / (1 - std::pow(h.beta2, t));
      p -= h.lr * corrected_m / (std::sqrt(corrected_v) + h.eps);
    } else if (rule == "lion") {
      const double left = h.beta1 * a, right = (1 - h.beta1) * g, c = left + right;
      // In float32 the sign may be another where the two terms cancel to within their rounding.
      if (std::fabs(c) < (kSteps + 4) * 0x1p-24 * (std::fabs(left) + std::fabs(right))) near_sign_change = true;
      p -= h.lr * (((c > 0) - (c < 0)) + h.weight_decay * p);
      a = (mistake ? h.beta1 : h.beta2) * a + (1 - (mistake ? h.beta1 : h.beta2)) * g;
    } else {  // sgd
      g += h.weight_decay * p;
      if (h.momentum > 0) {
        a = t == 1 && !mistake ? g : h.momentum * a + (1 - h.dampening) * g;
        p -= h.lr * (h.nesterov && !mistake ? g + h.momentum * a : a);
      } else {
        p -= h.lr * (mistake ? g * 1.001 : g);
      }
    }
  }
};

struct Claim {
  const char* name;
  const char* rule;
  Hyper hyper;
};

std::vector<Claim> claims() {
  std::vector<Claim> all;
  const auto add = [&](const char* name, const char* rule, auto&& change) {
    Hyper h = default_hyper(rule);
    h.lr = 1e-3;
    change(h);
    all.push_back({name, rule, h});
  };
  add("adam", "adam", [](Hyper&) {});
  add("adam, L2", "adam", [](Hyper& h) { h.weight_decay = 0.05; });
  add("adamw", "adamw", [](Hyper& h) { h.weight_decay = 0.1; });
  add("adamw, maximize, large eps", "adamw", [](Hyper& h) { h.maximize = true, h.eps = 1e-2, h.beta2 = 0.95; });
  add("lion", "lion", [](Hyper& h) { h.weight_decay = 0.1; });
  add("sgd", "sgd", [](Hyper& h) { h.weight_decay = 0.01; });
  add("sgd, momentum, dampening", "sgd", [](Hyper& h) { h.momentum = 0.9, h.dampening = 0.5; });
  add("sgd, nesterov", "sgd", [](Hyper& h) { h.momentum = 0.9, h.nesterov = true; });
  return all;
}

struct Outcome {
  double worst = 0, bound = 0, unit = 0;
  int64_t skipped = 0;
};

Outcome run(const Claim& claim, bool mistake) {
  Rng rng(40);
  std::vector<float> p(kElements), g(kElements);
  std::vector<Element> reference(kElements);
  for (size_t i = 0; i < p.size(); ++i) reference[i].p = p[i] = static_cast<float>(rng.normal());
  OptimizerOptions options;
  options.rule = claim.rule;
  Optimizer optimizer(options);
  GroupOptions group;
  group.hyper = claim.hyper;
  group.state = "fp32";
  optimizer.add_group(group);
  optimizer.add_param(0, {p.data(), DType::kF32, {kElements}, {}});
  double largest = 0;
  for (int t = 1; t <= kSteps; ++t) {
    for (size_t i = 0; i < g.size(); ++i) {
      g[i] = static_cast<float>(rng.normal() + (i % 3 ? 0.5 : 0));
      reference[i].step(claim.rule, claim.hyper, g[i], t, mistake);
      largest = std::max(largest, std::fabs(reference[i].p));
    }
    const Gradient gradient{g.data(), DType::kF32, nullptr};
    EXPECT_TRUE(optimizer.step({&gradient, 1}).applied);
  }
  Outcome out;
  out.unit = std::ldexp(1, std::ilogb(largest) - 23);
  out.bound = 1.1 * kSteps * (out.unit / 2 + 8 * claim.hyper.lr * (kSteps + 12) * 0x1p-24);
  for (size_t i = 0; i < p.size(); ++i) {
    if (reference[i].near_sign_change)
      ++out.skipped;
    else
      out.worst = std::max(out.worst, std::fabs(p[i] - reference[i].p));
  }
  return out;
}

TEST(Reference, HundredStepsStayWithinRounding) {
  std::printf("reference: seed 40, %d steps of %lld elements\n", kSteps, static_cast<long long>(kElements));
  for (const Claim& claim : claims()) {
    const Outcome right = run(claim, false), wrong = run(claim, true);
    std::printf("%-28s max error %6.2f ulp of the largest p, bound %.0f ulp, %lld skipped; with a mistake %.0f ulp\n",
                claim.name, right.worst / right.unit, right.bound / right.unit, static_cast<long long>(right.skipped),
                wrong.worst / wrong.unit);
    EXPECT_LE(right.worst, right.bound) << claim.name;
    // Skipped: Lion's sign of a sum within its rounding of 0, about kSteps * 1e-5 of the elements.
    EXPECT_LE(right.skipped, kElements / 100) << claim.name;
    EXPECT_GT(wrong.worst, 2 * wrong.bound) << claim.name << ": control";
  }
}

}  // namespace
}  // namespace lowtide::testing
