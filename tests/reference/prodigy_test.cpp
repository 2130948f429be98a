// Prodigy step by step against the paper's formulas in double: what each step makes of the parameters and states that
// it finds (decoded), and of the estimate of d, for every state format and pair of element types.
//
// Bounds, with e = 2^-24. A term lr g (p0 - p) of the sums is off by 3 e of itself, and |s| by 4 e of the terms'
// magnitudes; their sums are exact. So n is off by 4 e of the sum of magnitudes, and by what it was off before, times
// b3; d' by that over |s|_1 and by 4 e of itself for |s|_1. A float operation is off by e of its result: m by 4 e of
// its terms' magnitudes, v by 6 e, the quotient by 16 e of M = terms / denominator, as LAMB's; it is taken with the d
// that the step has found. The parameter's own rounding: half an ulp in float, half an ulp in its type.
#include "optim/carried.h"
#include "support/optimizer_case.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int kSteps = 6;
constexpr double kE = 0x1p-24;
constexpr int kD = 0, kDMax = 1, kNumerator = 2, kCount = 3;  // carried

struct Claim {
  const char* name;
  Hyper hyper;
};

std::vector<Claim> claims() {
  std::vector<Claim> all;
  const auto add = [&](const char* name, auto&& change) {
    Hyper h = default_hyper("prodigy");
    change(h);
    all.push_back({name, h});
  };
  add("prodigy", [](Hyper&) {});
  add("prodigy, decay, lr", [](Hyper& h) { h.weight_decay = 0.1, h.lr = 0.5, h.d0 = 1e-2; });
  add("prodigy, bias, safeguard", [](Hyper& h) { h.use_bias_correction = h.safeguard_warmup = true, h.d0 = 1e-3; });
  add("prodigy, growth, betas", [](Hyper& h) {
    h.growth_rate = 1.02, h.beta1 = 0, h.beta2 = 0.9, h.d_beta = 0.8, h.d_coef = 2, h.d0 = 1e-2, h.eps = 1e-2;
  });
  return all;
}

// The numbers of an estimate after a step, and how far off they may be.
struct Estimate {
  double d, d_max, numerator, off_d, off_numerator;
};

Estimate estimate(const Hyper& h, const Carried& before, double along, double size_along, double length,
                  double size_length, bool mistake) {
  const double t = before.of[kCount] + 1, d = before.of[kD];
  const double bias = h.use_bias_correction ? std::sqrt(1 - std::pow(h.beta2, t)) / (1 - std::pow(h.beta1, t)) : 1;
  const double b3 = (h.d_beta > 0 ? h.d_beta : std::sqrt(h.beta2)) * (mistake ? 0.99 : 1), rate = d * h.lr * bias;
  Estimate out{};
  out.numerator = b3 * before.of[kNumerator] + d / h.d0 * rate * along;
  out.off_numerator = 4 * kE * d / h.d0 * rate * size_along;
  const double found = h.d_coef * out.numerator / length;
  const double off = h.d_coef * out.off_numerator / length + 4 * kE * std::fabs(found) * size_length / length;
  const double from = d == h.d0 ? std::max(d, found) : d;
  out.d_max = std::max(before.of[kDMax], found);
  out.d = std::min(out.d_max, from * h.growth_rate);
  out.off_d = off * std::max(1.0, std::isfinite(h.growth_rate) ? h.growth_rate : 1.0);
  return out;
}

struct Figures {
  int64_t elements = 0, estimates = 0, seen = 0, d_seen = 0;
  double worst = 0, worst_d = 0;
};

void run(const Claim& claim, const std::string& codec, DType p_dtype, DType g_dtype, Rng& rng, Figures& f) {
  const Hyper& h = claim.hyper;
  Optimizer optimizer = make_optimizer({.rule = "prodigy", .state = codec, .hyper = h});
  Hyper other = h;  // another group may decay differently
  other.weight_decay = 0;
  optimizer.add_group({.hyper = other, .state = codec, .min_quantized_numel = 0});
  std::vector<Tensor> params, grads;
  std::vector<std::vector<double>> far;  // p0, away from which the gradients point
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{3, 700}, {1}, {2000}, {4, 256}}) {
    params.emplace_back(p_dtype, sizes).randomize(rng);
    grads.emplace_back(g_dtype, sizes);
    far.emplace_back();
    for (int64_t i = 0; i < params.back().numel; ++i) far.back().push_back(3 * rng.normal());
    optimizer.add_param(static_cast<int>(params.size()) % 2, params.back().view());
  }
  const int mantissa = p_dtype == DType::kF32 ? 24 : p_dtype == DType::kBF16 ? 8 : 11;
  for (int t = 1; t <= kSteps; ++t) {
    const Carried before = carried_of(optimizer, 0);
    const double d = before.of[kD], steps = before.of[kCount] + 1;
    const double bias =
        h.use_bias_correction ? std::sqrt(1 - std::pow(h.beta2, steps)) / (1 - std::pow(h.beta1, steps)) : 1;
    const double rate = d * h.lr * bias, b3 = h.d_beta > 0 ? h.d_beta : std::sqrt(h.beta2);
    const double take_s = d / h.d0 * (h.safeguard_warmup ? d : rate);
    std::vector<Gradient> gradients;
    std::vector<std::vector<std::vector<float>>> states;
    std::vector<std::vector<float>> old;
    double along = 0, size_along = 0, length = 0, size_length = 0;
    for (size_t i = 0; i < params.size(); ++i) {
      std::vector<float>& p = old.emplace_back();
      for (int64_t e = 0; e < params[i].numel; ++e) {
        p.push_back(params[i].get(e));
        grads[i].set(e, p.back() - far[i][size_t(e)] + 0.2 * rng.normal());
      }
      gradients.push_back(grads[i].gradient());
      auto& state = states.emplace_back(4, std::vector<float>(p.size()));
      for (int k = 0; k < std::ssize(optimizer.state(int64_t(i))); ++k)
        optimizer.export_state(int64_t(i), k, state[size_t(k)].data());
      for (size_t e = 0; e < p.size(); ++e) {
        const double g = grads[i].get(int64_t(e)), term = -g * state[3][e];
        const double left = b3 * state[2][e], right = take_s * g;
        along += term, size_along += std::fabs(term);
        length += std::fabs(left + right), size_length += std::fabs(left) + std::fabs(right);
      }
    }
    ASSERT_TRUE(optimizer.step(gradients).applied);
    const Carried after = carried_of(optimizer, 0);
    for (size_t i = 1; i < params.size(); ++i) ASSERT_EQ(carried_of(optimizer, int64_t(i)), after);
    const Estimate wanted = estimate(h, before, along, size_along, length, size_length, false);
    const Estimate mistaken = estimate(h, before, along, size_along, length, size_length, true);
    ASSERT_LE(std::fabs(after.of[kD] - wanted.d), wanted.off_d + 1e-14 * wanted.d) << claim.name << " step " << t;
    ASSERT_LE(std::fabs(after.of[kDMax] - wanted.d_max), wanted.off_d + 1e-14 * wanted.d_max) << claim.name;
    ASSERT_LE(std::fabs(after.of[kNumerator] - wanted.numerator),
              wanted.off_numerator + 1e-13 * std::fabs(wanted.numerator))
        << claim.name << " step " << t;
    ASSERT_EQ(after.of[kCount], steps);
    ++f.estimates, f.worst_d = std::max(f.worst_d, std::fabs(after.of[kD] / wanted.d - 1));
    f.d_seen += std::fabs(mistaken.numerator - wanted.numerator) > 2 * wanted.off_numerator;
    for (size_t i = 0; i < params.size(); ++i)
      for (size_t e = 0; e < old[i].size(); ++e, ++f.elements) {
        const double g = grads[i].get(int64_t(e)), p = old[i][e];
        const double of_m = h.beta1 > 0 ? d : after.of[kD];  // as the package
        const double left = h.beta1 * states[i][0][e], right = (1 - h.beta1) * of_m * g;
        const double v = h.beta2 * states[i][1][e] + (1 - h.beta2) * d * d * g * g;
        const double root = std::sqrt(v) + after.of[kD] * h.eps;
        const double decay = i % 2 ? h.weight_decay : 0;  // the first parameter is in group 1
        const double moved = rate * ((left + right) / root) + rate * decay * p;
        const double size = rate * (std::fabs(left) + std::fabs(right)) / root;
        const double next = p - moved, got = params[i].get(int64_t(e));
        const double error = 18 * kE * size + 4 * kE * std::fabs(rate * decay * p) + 3 * kE * std::fabs(next);
        const double bound = error + std::max(std::ldexp(std::fabs(next) + error, -mantissa), 0x1p-25);
        ASSERT_LE(std::fabs(got - next), bound)
            << claim.name << " " << codec << " step " << t << " parameter " << i << " element " << e;
        if (p_dtype == DType::kF32) f.worst = std::max(f.worst, std::fabs(got - next) / bound);
        f.seen += size * 0.01 > 2 * bound;  // an update that is off by 1 %
      }
    if (codec != "fp32") continue;
    for (size_t i = 0; i < params.size(); ++i) {
      std::vector<float> now(old[i].size());
      optimizer.export_state(int64_t(i), 3, now.data());
      for (size_t e = 0; e < now.size() && p_dtype == DType::kF32; ++e) {
        const double moved = double(params[i].get(int64_t(e))) - old[i][e], wanted_d = states[i][3][e] + moved;
        ASSERT_LE(std::fabs(now[e] - wanted_d), 1.01 * kE * (std::fabs(wanted_d) + std::fabs(moved)))
            << "p - p0 follows the weights";
      }
    }
  }
}

TEST(Prodigy, StepsAreThoseOfTheFormulas) {
  auto rng = seeded("prodigy", 47);
  for (const Claim& claim : claims()) {
    Figures f;
    for (const std::string& codec : codec_names_of("prodigy", claim.hyper))
      for (const DType p : kDTypes)
        for (const DType g : kDTypes) run(claim, codec, p, g, rng, f);
    figure(
        "{}: {} elements, float32 at most {} of the bound off; d of {} steps within {}; a mistake would be seen in {} "
        "and {}",
        claim.name, f.elements, f.worst, f.estimates, f.worst_d, f.seen, f.d_seen);
    EXPECT_GT(f.seen, f.elements / 20) << "control";
    EXPECT_GT(f.d_seen, f.estimates / 2) << "control";
  }
}

TEST(Prodigy, NothingMovesWithoutAGradientOrALearningRate) {
  Tensor param(DType::kF32, {4, 300}), grad(DType::kF32, {4, 300});
  auto rng = seeded("prodigy at rest", 48);
  param.randomize(rng);
  Hyper h = default_hyper("prodigy");
  h.weight_decay = 0.1;
  Optimizer optimizer = make_optimizer({.rule = "prodigy", .state = "fp32", .hyper = h}, {&param});
  const std::vector<std::byte> before = param.data;
  ASSERT_TRUE(take_step(optimizer, grad).applied) << "zeros";
  EXPECT_EQ(param.data, before);
  grad.randomize(rng);
  h.lr = 0;
  optimizer.set_hyper(0, h);
  ASSERT_TRUE(take_step(optimizer, grad).applied);
  EXPECT_EQ(param.data, before);
  EXPECT_EQ(carried_of(optimizer, 0).of[kD], 1e-6);
  EXPECT_EQ(carried_of(optimizer, 0).of[kCount], 0);
  h.lr = 1;
  optimizer.set_hyper(0, h);
  ASSERT_TRUE(take_step(optimizer, grad).applied);
  ASSERT_TRUE(take_step(optimizer, grad).applied);
  const Carried now = carried_of(optimizer, 0);
  EXPECT_EQ(now.of[kCount], 2);
  grad.set(7, INFINITY);
  EXPECT_FALSE(take_step(optimizer, grad).applied);
  EXPECT_EQ(carried_of(optimizer, 0), now) << "a skipped step";
}

TEST(Prodigy, OneEstimateServesAllGroups) {
  Tensor a(DType::kF32, {300}), b(DType::kF32, {300});
  Hyper h = default_hyper("prodigy");
  Optimizer optimizer = make_optimizer({.rule = "prodigy", .hyper = h}, {&a});
  const int other = optimizer.add_group({.hyper = h});
  optimizer.add_param(other, b.view());
  const Gradient gradients[] = {a.gradient(), b.gradient()};
  h.lr = 0.5;
  optimizer.set_hyper(other, h);
  optimizer.step(gradients);
  h.d_coef = 2;
  optimizer.set_hyper(other, h);
  expect_refusal([&] { optimizer.step(gradients); }, "got d_coef=2 in group 1 and d_coef=1 in group 0 of prodigy");
  set_carried(optimizer, 0, {{1e-3, 1e-3, 0, 4, 0}});
  h.d_coef = 1;
  optimizer.set_hyper(other, h);
  expect_refusal([&] { optimizer.step(gradients); }, "load the state of all parameters from one run");
}

}  // namespace
}  // namespace lowtide::testing
