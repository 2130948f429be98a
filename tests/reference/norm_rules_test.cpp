// LAMB and LARS step by step against the papers' formulas in double: each step's results from the (decoded) parameter
// and state before it, for every state format, pair of element types, and option.
//
// Bounds, with e = 2^-24. A float operation is off by e of its result. LAMB's m: 4 e of the terms' magnitudes |b1 m| +
// |(1 - b1) g|, v: 5 e; with root, products, sum and quotient, r is off by 16 e of M = terms / denominator, and by 2 e
// of |r| + |weight_decay p|. Norms of float sums of 256 are off by 15/2 e, and that of r by 16 e times |M| / |r| more
// (the triangle inequality); their quotient times lr is rounded once: the ratio is off by (16 + 18 |M| / |r|) e. LARS:
// norms as above, of exact terms, and a denominator of positive terms: 16 e; a dozen operations on terms whose
// magnitudes add up to D: 16 e D. With max_unorm the norm of the direction is also off by 16 e |D| / |direction|.
// Rounding the parameter adds half an ulp in float, and half an ulp in its type.
#include "support/optimizer_case.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int kSteps = 4;
constexpr double kE = 0x1p-24;

// A parameter's next values, with bounds of their errors, from its values, gradients and states.
struct Reference {
  std::vector<double> p, error;
};

double norm(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

Reference lamb(const Hyper& h, const std::vector<float>& p, const std::vector<float>& g, const std::vector<float>& m,
               const std::vector<float>& v, int t, bool mistake) {
  const size_t n = p.size();
  const bool clips = h.max_unorm > 0;
  std::vector<double> r(n), size(n), of_p(p.begin(), p.end());
  for (size_t i = 0; i < n; ++i) {
    const double next_m = h.beta1 * m[i] + (1 - h.beta1) * g[i], next_v = h.beta2 * v[i] + (1 - h.beta2) * g[i] * g[i];
    const double bias = 1 - std::pow(h.beta1, t), root = std::sqrt(next_v / (1 - std::pow(h.beta2, t))) + h.eps;
    const double decay = clips != mistake ? 0 : h.weight_decay * p[i];  // mistake: decay at the wrong place
    r[i] = next_m / bias / root + decay;
    size[i] = (std::fabs(h.beta1 * m[i]) + std::fabs((1 - h.beta1) * g[i])) / bias / root + std::fabs(decay);
  }
  const double of_r = norm(r), ratio = norm(of_p) == 0 || of_r == 0 ? 1
                                       : clips                      ? std::min(1.0, h.max_unorm * norm(of_p) / of_r)
                                                                    : norm(of_p) / of_r;
  const double loose = of_r == 0 ? 0 : (16 + 18 * norm(size) / of_r) * kE;
  Reference out;
  for (size_t i = 0; i < n; ++i) {
    const double beside = clips != mistake ? h.lr * h.weight_decay * p[i] : 0;
    out.p.push_back(p[i] - h.lr * ratio * r[i] - beside);
    out.error.push_back(h.lr * ratio * (18 * kE * size[i] + (loose + 2 * kE) * std::fabs(r[i])) +
                        2 * kE * std::fabs(beside));
  }
  return out;
}

Reference lars(const Hyper& h, const std::vector<float>& p, const std::vector<float>& g, const std::vector<float>& b,
               int t, bool mistake) {
  const size_t n = p.size();
  const bool clips = h.max_unorm > 0;
  const std::vector<double> of_p(p.begin(), p.end()), of_g(g.begin(), g.end());
  double local = 1;
  if (!clips && norm(of_p) > 0 && norm(of_g) > 0)
    local = h.trust_coefficient * norm(of_p) / (norm(of_g) + (mistake ? 0 : h.weight_decay * norm(of_p)) + h.eps);
  std::vector<double> direction(n), size(n);
  for (size_t i = 0; i < n; ++i) {
    const double scaled = local * (g[i] + h.weight_decay * p[i]);
    const double terms = local * (std::fabs(g[i]) + std::fabs(h.weight_decay * p[i]));
    const double keep = h.momentum == 0 || t == 1 ? 0 : h.momentum;
    const double take = h.momentum == 0 || t == 1 ? 1 : 1 - h.dampening;
    const double next = keep * b[i] + take * scaled;
    const double of_b = h.nesterov ? h.momentum : 1, nesterov = h.nesterov && !mistake ? 1 : 0;
    direction[i] = nesterov * scaled + of_b * next;
    size[i] = nesterov * terms + of_b * (std::fabs(keep * b[i]) + std::fabs(take) * terms);
  }
  const double length = norm(direction);
  double ratio = 1, loose = 16 * kE;
  if (clips && norm(of_p) > 0 && length > 0) {
    ratio = mistake ? h.max_unorm * norm(of_p) / length : std::min(1.0, h.max_unorm * norm(of_p) / length);
    loose = (16 + 16 * norm(size) / length) * kE;
  }
  Reference out;
  for (size_t i = 0; i < n; ++i) {
    out.p.push_back(p[i] - h.lr * ratio * direction[i]);
    out.error.push_back(h.lr * ratio * (16 * kE + loose) * size[i]);
  }
  return out;
}

struct Claim {
  const char* name;
  const char* rule;
  Hyper hyper;
  double gradients = 1;  // their scale
};

std::vector<Claim> claims() {
  std::vector<Claim> all;
  const auto add = [&](const char* name, const char* rule, double gradients, auto&& change) {
    Hyper h = default_hyper(rule);
    h.lr = 0.125;
    change(h);
    all.push_back({name, rule, h, gradients});
  };
  add("lamb", "lamb", 1, [](Hyper& h) { h.weight_decay = 0.25; });
  add("lamb, small gradients", "lamb", 1e-5, [](Hyper& h) { h.weight_decay = 0.25, h.eps = 1e-4; });
  add("lamb, max_unorm", "lamb", 1, [](Hyper& h) { h.max_unorm = 0.25, h.weight_decay = 0.25; });
  add("lars", "lars", 1, [](Hyper& h) { h.trust_coefficient = 0.5, h.weight_decay = 0.25; });
  add("lars, dampening", "lars", 1e3,
      [](Hyper& h) { h.trust_coefficient = 0.5, h.weight_decay = 250, h.dampening = 0.5; });
  add("lars, nesterov", "lars", 1, [](Hyper& h) { h.trust_coefficient = 0.5, h.nesterov = true; });
  add("lars, no momentum", "lars", 1e-3, [](Hyper& h) { h.momentum = 0, h.weight_decay = 1e-3; });
  add("lars, max_unorm", "lars", 1, [](Hyper& h) { h.max_unorm = 10, h.weight_decay = 0.25; });
  add("lars, max_unorm, no momentum", "lars", 1, [](Hyper& h) { h.max_unorm = 10, h.momentum = 0; });
  return all;
}

struct Figures {
  int64_t elements = 0, wrong = 0, seen = 0;  // seen: elements that a mistake would move beyond the bound
  double worst = 0;
};

void run(const Claim& claim, const std::string& codec, DType p_dtype, DType g_dtype, Rng& rng, Figures& f) {
  Config setup{.rule = claim.rule, .state = codec, .hyper = claim.hyper};
  Optimizer optimizer = make_optimizer(setup);
  std::vector<Tensor> params, grads;
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{3, 700}, {1}, {2000}, {4, 256}}) {
    params.emplace_back(p_dtype, sizes).randomize(rng, std::exp(2 * rng.normal()));
    grads.emplace_back(g_dtype, sizes);
    optimizer.add_param(0, params.back().view());
  }
  const int mantissa = p_dtype == DType::kF32 ? 24 : p_dtype == DType::kBF16 ? 8 : 11;
  for (int t = 1; t <= kSteps; ++t) {
    std::vector<Gradient> gradients;
    std::vector<Reference> wanted, mistaken;
    for (size_t i = 0; i < params.size(); ++i) {
      // Some gradients are zero, so that only momentum moves the parameter, and some parameters start as zeros.
      grads[i].randomize(rng, rng.chance(0.1) ? 0 : claim.gradients);
      if (t == 1 && rng.chance(0.15)) params[i].randomize(rng, 0);
      gradients.push_back(grads[i].gradient());
      std::vector<float> p, g;
      for (int64_t e = 0; e < params[i].numel; ++e) p.push_back(params[i].get(e)), g.push_back(grads[i].get(e));
      std::vector<std::vector<float>> state(2, std::vector<float>(p.size()));
      for (int k = 0; k < std::ssize(optimizer.state(int64_t(i))); ++k)
        optimizer.export_state(int64_t(i), k, state[size_t(k)].data());
      const auto reference = [&](bool mistake) {
        return claim.rule == std::string("lamb") ? lamb(claim.hyper, p, g, state[0], state[1], t, mistake)
                                                 : lars(claim.hyper, p, g, state[0], t, mistake);
      };
      wanted.push_back(reference(false)), mistaken.push_back(reference(true));
    }
    ASSERT_TRUE(optimizer.step(gradients).applied);
    for (size_t i = 0; i < params.size(); ++i)
      for (int64_t e = 0; e < params[i].numel; ++e, ++f.elements) {
        const double next = wanted[i].p[size_t(e)], got = params[i].get(e);
        const double size = std::fabs(next) + wanted[i].error[size_t(e)];
        const double bound =
            wanted[i].error[size_t(e)] + 2 * kE * size + std::max(std::ldexp(size, -mantissa), 0x1p-25);
        f.wrong += !(std::fabs(got - next) <= bound);
        ASSERT_LE(std::fabs(got - next), bound)
            << claim.name << " " << codec << " step " << t << " parameter " << i << " element " << e;
        if (p_dtype == DType::kF32) f.worst = std::max(f.worst, std::fabs(got - next) / bound);
        f.seen += std::fabs(mistaken[i].p[size_t(e)] - next) > 2 * bound;
      }
  }
}

TEST(NormRules, StepsAreThoseOfTheFormulas) {
  auto rng = seeded("norm rules", 43);
  for (const Claim& claim : claims()) {
    Figures f;
    for (const std::string& codec : codec_names())
      for (const DType p : kDTypes)
        for (const DType g : kDTypes) run(claim, codec, p, g, rng, f);
    figure("{} {} elements, {} wrong, float32 at most {} of the bound off; a mistake would be seen in {}", claim.name,
           f.elements, f.wrong, f.worst, f.seen);
    EXPECT_EQ(f.wrong, 0);
    EXPECT_GT(f.seen, f.elements / 20) << "control";
  }
}

}  // namespace
}  // namespace lowtide::testing
