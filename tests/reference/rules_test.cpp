// Trajectories of 100 steps with float32 state against the papers' formulas in double.
//
// Bound, with u = ulp of the largest |p|. The subtraction rounds p once a step: half a u. The subtracted value has a
// relative error of at most (steps + 12) * 2^-24 (the float32 betas enter every one of `steps` products; a dozen
// operations follow), of at most `largest` lr for these gradients. That is 8, but RMSprop's first steps are 1 / sqrt(1
// - alpha) = 10 lr, and its momentum adds up to ten of them. Adam's and SGD's L2 term feeds p's error back through the
// gradient, a factor below 1 + largest lr * weight_decay a step: 1.1 in all. So after T steps
//   |error| <= 1.1 T (u / 2 + largest lr (T + 12) 2^-24).
#include "lowtide/optimizer.h"
#include "support/compare.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int kSteps = 100;
constexpr int64_t kElements = 5000;

// One element in double. `mistake` turns one detail of the formula into a common error.
struct Element {
  double p = 0, a = 0, b = 0, c = 0, product = 1;  // a, b, c: states; product: the product of mu, or the sum of weights
  bool near_sign_change = false;

  void step(const std::string& rule, const Hyper& h, double g, int t, bool mistake) {
    if (h.maximize) g = -g;
    if (rule == "adagrad") {
      g += h.weight_decay * p;
      if (t == 1 && !mistake) a = h.initial_accumulator_value;
      a += g * g;
      p -= h.lr / (1 + (t - 1) * h.lr_decay) * g / (std::sqrt(a) + h.eps);
    } else if (rule == "rmsprop") {
      g += h.weight_decay * p;
      a = h.alpha * a + (1 - h.alpha) * g * g;
      b = h.alpha * b + (1 - h.alpha) * g;
      const double spread = h.centered && !mistake ? a - b * b : a;
      const double d = g / (std::sqrt(mistake && !h.centered ? a / (1 - std::pow(h.alpha, t)) : spread) + h.eps);
      c = h.momentum * c + d;
      p -= h.lr * (h.momentum > 0 ? c : d);
    } else if (rule == "ademamix") {
      const double alpha = h.t_alpha > 0 ? std::min(h.alpha * t / h.t_alpha, h.alpha) : h.alpha;
      double beta3 = h.beta3;
      if (h.t_beta3 > 0 && !mistake) {
        const double s = t / h.t_beta3, l1 = std::log(h.beta1), l3 = std::log(h.beta3);
        beta3 = std::min(std::exp(l1 * l3 / ((1 - s) * l3 + s * l1)), h.beta3);
      }
      a = h.beta1 * a + (1 - h.beta1) * g;
      b = h.beta2 * b + (1 - h.beta2) * g * g;
      c = beta3 * c + (1 - beta3) * g;
      const double divisor = std::sqrt(b) / std::sqrt(1 - std::pow(h.beta2, t)) + h.eps;
      p -= h.lr * ((a / (1 - std::pow(h.beta1, t)) + alpha * c) / divisor + h.weight_decay * p);
    } else if ((rule == "adam" || rule == "adamw") && h.nesterov) {
      const auto mu = [&](int i) { return h.beta1 * (1 - 0.5 * std::pow(0.96, i * h.momentum_decay)); };
      if (rule == "adam")
        g += h.weight_decay * p;
      else
        p -= h.lr * h.weight_decay * p;
      product *= mu(t);
      a = h.beta1 * a + (1 - h.beta1) * g;
      b = h.beta2 * b + (1 - h.beta2) * g * g;
      const double divisor = std::sqrt(b / (1 - std::pow(h.beta2, t))) + h.eps;
      const double ahead = mistake ? a / (1 - product) : a * mu(t + 1) / (1 - product * mu(t + 1));
      p -= h.lr * (ahead + (mistake ? 0 : g * (1 - mu(t)) / (1 - product))) / divisor;
    } else if (rule == "adam" || rule == "adamw") {
      if (rule == "adam")
        g += h.weight_decay * p;
      else
        p -= h.lr * h.weight_decay * p;
      a = h.beta1 * a + (1 - h.beta1) * g;
      b = h.beta2 * b + (1 - h.beta2) * g * g;
      const double corrected_m = a / (1 - std::pow(h.beta1, t));
      c = std::max(b, c);
      const double v = h.amsgrad && !mistake ? c : b;
      const double corrected_v = mistake && !h.amsgrad ? v : v / (1 - std::pow(h.beta2, t));
      p -= h.lr * corrected_m / (std::sqrt(corrected_v) + h.eps);
    } else if (rule == "schedulefree") {  // a: z, c: x, b: v; p is y
      if (t == 1) a = c = p, product = 0;
      const double lr = h.lr * std::min(1.0, t / std::max(h.warmup_steps, 1.0));
      const double weight = std::pow(t, h.r) * std::pow(lr, h.weight_lr_power);  // lr never falls
      product += weight;
      b = h.beta2 * b + (1 - h.beta2) * g * g;
      const double u = g / (std::sqrt(b / (1 - std::pow(h.beta2, t))) + h.eps) + h.weight_decay * p;
      const double share = mistake ? 1.0 / (t + 1) : weight / product;
      a -= lr * u;
      c = (1 - share) * c + share * a;
      p = (1 - h.beta1) * a + h.beta1 * c;
    } else if (rule == "lion") {
      const double left = h.beta1 * a, right = (1 - h.beta1) * g, c = left + right;
      // The float32 sign may differ if the two terms cancel to within their rounding.
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
  double largest = 8;  // the largest update, in units of lr
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
  add("adam, amsgrad", "adam", [](Hyper& h) { h.amsgrad = true, h.beta2 = 0.9; });
  add("adamw, amsgrad", "adamw", [](Hyper& h) { h.amsgrad = true, h.beta2 = 0.9, h.weight_decay = 0.1; });
  add("adam, nesterov", "adam", [](Hyper& h) { h.nesterov = true, h.weight_decay = 0.05; });
  add("adamw, nesterov", "adamw", [](Hyper& h) { h.nesterov = true, h.weight_decay = 0.1; });
  add("adagrad", "adagrad", [](Hyper& h) { h.initial_accumulator_value = 0.5, h.lr_decay = 0.01; });
  add("adagrad, L2", "adagrad", [](Hyper& h) { h.initial_accumulator_value = 0.1, h.weight_decay = 0.05; });
  add("rmsprop", "rmsprop", [](Hyper&) {});
  all.back().largest = 10;
  add("rmsprop, centered", "rmsprop", [](Hyper& h) { h.centered = true, h.weight_decay = 0.01; });
  all.back().largest = 10;
  add("rmsprop, momentum", "rmsprop", [](Hyper& h) { h.momentum = 0.9; });
  all.back().largest = 100;
  add("rmsprop, centered, momentum", "rmsprop", [](Hyper& h) { h.momentum = 0.9, h.centered = true; });
  all.back().largest = 100;
  add("schedulefree", "schedulefree", [](Hyper& h) { h.weight_decay = 0.1; });
  add("schedulefree, warm-up", "schedulefree", [](Hyper& h) { h.warmup_steps = 30, h.r = 1, h.beta2 = 0.99; });
  add("ademamix", "ademamix", [](Hyper& h) { h.beta3 = 0.99, h.t_beta3 = 50; });
  add("ademamix, schedules", "ademamix", [](Hyper& h) { h.beta3 = 0.999, h.t_beta3 = 200, h.t_alpha = 150; });
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
  OptimizerOptions options{.rule = claim.rule};
  Optimizer optimizer(options);
  GroupOptions group{.hyper = claim.hyper, .state = "fp32"};
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
  out.bound = 1.1 * kSteps * (out.unit / 2 + claim.largest * claim.hyper.lr * (kSteps + 12) * 0x1p-24);
  for (size_t i = 0; i < p.size(); ++i) {
    if (reference[i].near_sign_change)
      ++out.skipped;
    else
      out.worst = std::max(out.worst, std::fabs(p[i] - reference[i].p));
  }
  return out;
}

TEST(Reference, HundredStepsStayWithinRounding) {
  figure("reference: seed 40, {} steps of {} elements", kSteps, kElements);
  for (const Claim& claim : claims()) {
    const Outcome right = run(claim, false), wrong = run(claim, true);
    figure("{} max error {} ulp of the largest p, bound {} ulp, {} skipped; with a mistake {} ulp", claim.name,
           right.worst / right.unit, right.bound / right.unit, right.skipped, wrong.worst / wrong.unit);
    EXPECT_LE(right.worst, right.bound) << claim.name;
    // Skipped elements: the sum whose sign Lion takes is within its rounding of 0; about kSteps * 1e-5 of the elements.
    EXPECT_LE(right.skipped, kElements / 100) << claim.name;
    EXPECT_GT(wrong.worst, 2 * wrong.bound) << claim.name << ": control";
  }
}

}  // namespace
}  // namespace lowtide::testing
