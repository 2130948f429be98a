// One step from a given quantized state: p must be the formula in double on the decoded state, and the stored state
// must encode the formula's new state.
//
// Bounds. float32 arithmetic on m or v: decoding, two products and a sum are 4 roundings of terms whose magnitudes add
// up to `terms`: 4 * 2^-24 * terms. The update: 12 more roundings. p: half an ulp of the subtraction, and half an ulp
// of its type when stored. The stored code is nearest to some value in the band new * (1 +- 2^-21), so it lies between
// the codes of the band's ends, which differ only if a midpoint lies in the band.
#include "backend/cpu/cpu_backend.h"
#include "support/dynamic_map.h"
#include "support/step_case.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

struct Expected {
  double p, p_error, state[2], terms[2];
};

Expected formula(const char* rule, double p, double g, const double (&s)[2], double lr, double decay) {
  const double b1 = 0.9, b2 = 0.99, eps = 1e-8, t = 5, wd = decay;
  Expected out{};
  if (std::string(rule) == "adamw") {
    out.state[0] = b1 * s[0] + (1 - b1) * g;
    out.state[1] = b2 * s[1] + (1 - b2) * g * g;
    out.terms[0] = std::fabs(b1 * s[0]) + std::fabs((1 - b1) * g);
    out.terms[1] = out.state[1];
    const double divisor = (std::sqrt(out.state[1] / (1 - std::pow(b2, t))) + eps) * (1 - std::pow(b1, t));
    out.p = p - lr * wd * p - lr * out.state[0] / divisor;
    out.p_error = lr * out.terms[0] / divisor * 20 * 0x1p-24;
  } else if (std::string(rule) == "lion") {
    const double c = b1 * s[0] + (1 - b1) * g;
    out.state[0] = b2 * s[0] + (1 - b2) * g;
    out.terms[0] = std::fabs(b2 * s[0]) + std::fabs((1 - b2) * g);
    out.p = p - lr * (((c > 0) - (c < 0)) + wd * p);
    if (std::fabs(c) < 8 * 0x1p-24 * (std::fabs(s[0]) + std::fabs(g))) out.p_error = 2 * lr;
  } else {  // sgd with momentum 0.9, dampening 0.1
    out.terms[0] = std::fabs(0.9 * s[0]) + 0.9 * (std::fabs(g) + std::fabs(wd * p));  // terms that may cancel
    g += wd * p;
    out.state[0] = 0.9 * s[0] + 0.9 * g;
    out.p = p - lr * out.state[0];
    out.p_error = lr * out.terms[0] * 8 * 0x1p-24;
  }
  return out;
}

double decoded(const StepCase& c, const DynamicMap (&maps)[2], bool is_signed, int k, int64_t i) {
  if (c.scales[k].empty()) return element(c.codes[k].data(), DType::kBF16, i);
  const int64_t blocks = (c.layout.row_length + 255) / 256, row = i / c.layout.row_length;
  const size_t block = static_cast<size_t>(row * blocks + i % c.layout.row_length / 256);
  return double{maps[is_signed].value[static_cast<size_t>(c.codes[k][static_cast<size_t>(i)])]} * c.scales[k][block];
}

struct Figures {
  int64_t codes = 0, ambiguous = 0, wrong = 0;
  double worst_p = 0, worst_scale = 0;
};

void check(const char* rule, const char* codec, DType p_dtype, Rng& rng, Figures& f) {
  const DynamicMap maps[2] = {DynamicMap(false), DynamicMap(true)};
  const bool scaled = std::string(codec) == "dynamic8";
  StepCase c(find_rule(rule), find_codec(codec), p_dtype, DType::kF32, 9, 777, rng);
  const RuleInfo& info = rule_info(c.rule);
  c.set_step(5);
  c.stochastic = 0;
  StepCase old = c;
  const StepItem item = c.item();
  cpu::make_backend("")->step({&item, 1}, 1, false, nullptr);
  std::vector<Expected> expected;
  for (int64_t i = 0; i < c.layout.numel; ++i) {
    double s[2] = {};
    for (int k = 0; k < info.states; ++k) s[k] = decoded(old, maps, (info.signed_mask >> k) & 1, k, i);
    const double p = element(old.param.data(), p_dtype, i);
    expected.push_back(formula(rule, p, element(old.grad.data(), DType::kF32, i), s, c.lr, c.weight_decay));
    const Expected& e = expected.back();
    const double got = element(c.param.data(), p_dtype, i);
    const int mantissa = p_dtype == DType::kF32 ? 24 : p_dtype == DType::kBF16 ? 8 : 11;
    const double size = std::max(std::fabs(p), std::fabs(e.p));
    const double bound =
        e.p_error + size * 0x1p-24 * (1 + 0x1p-10) + std::max(size * std::ldexp(1, -mantissa), 0x1p-25) * (1 + 0x1p-10);
    ASSERT_LE(std::fabs(got - e.p), bound)
        << rule << " " << codec << " index " << i << " got " << got << " wanted " << e.p;
    f.worst_p = std::max(f.worst_p, std::fabs(got - e.p) / bound);
  }
  for (int k = 0; k < info.states; ++k) {
    const bool is_signed = (info.signed_mask >> k) & 1;
    for (int64_t row = 0; row < 9; ++row)
      for (int64_t b = 0; b < 777; b += 256) {
        const int64_t end = std::min<int64_t>(777, b + 256);
        double absmax = 0, most_terms = 0;
        for (int64_t i = b; i < end; ++i) {
          const Expected& e = expected[static_cast<size_t>(row * 777 + i)];
          absmax = std::max(absmax, std::fabs(e.state[k]));
          most_terms = std::max(most_terms, e.terms[k]);
        }
        if (scaled) {
          const double scale = c.scales[k][static_cast<size_t>(row * 4 + b / 256)];
          ASSERT_LE(std::fabs(scale - absmax), 5 * 0x1p-24 * most_terms + 0x1p-149) << rule << " state " << k;
          f.worst_scale = std::max(f.worst_scale, std::fabs(scale - absmax) / absmax);
        }
        for (int64_t i = b; i < end; ++i) {
          const int64_t at = row * 777 + i;
          const Expected& e = expected[static_cast<size_t>(at)];
          const double band = 8 * 0x1p-24 * std::max(e.terms[k], std::fabs(e.state[k])) + 0x1p-149;
          int got, low, high;
          if (scaled) {
            const DynamicMap& map = maps[is_signed];
            // The codes of the band's ends, with absmax's own error in the quotient.
            const auto code = [&](double value) {
              const int nearest = map.nearest(static_cast<float>(value / absmax));
              return !is_signed && e.state[k] > 0 ? std::max(nearest, 1) : nearest;
            };
            const double slack = band + std::fabs(e.state[k]) * 8 * 0x1p-24 * std::max(1.0, most_terms / absmax);
            got = static_cast<int>(c.codes[k][static_cast<size_t>(at)]);
            low = code(e.state[k] - slack), high = code(e.state[k] + slack);
          } else {
            const auto ordered16 = [](uint16_t h) { return h & 0x8000 ? -(h & 0x7fff) : int{h}; };
            uint16_t bits;
            std::memcpy(&bits, c.codes[k].data() + at * 2, 2);
            got = ordered16(bits);
            low = ordered16(bf16_nearest(e.state[k] - band)), high = ordered16(bf16_nearest(e.state[k] + band));
            if (!is_signed && e.state[k] > 0) low = std::max(low, 1), high = std::max(high, 1);
          }
          ++f.codes, f.ambiguous += low != high, f.wrong += got < low || got > high;
          ASSERT_TRUE(got >= low && got <= high)
              << rule << " " << codec << " state " << k << " index " << at << " got code " << got << ", wanted " << low
              << ".." << high << " for " << e.state[k];
        }
      }
  }
}

TEST(QuantizedStep, StoresTheEncodingOfTheFormulasState) {
  auto rng = seeded("quantized step", 41);
  for (const char* codec : {"dynamic8", "bf16"}) {
    Figures f;
    for (const char* rule : {"adamw", "lion", "sgd"})
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
        for (int round = 0; round < 5; ++round) check(rule, codec, dtype, rng, f);
    figure("{} {} codes, {} wrong, {} where rounding decides between neighbours; p at most {} of its bound", codec,
           f.codes, f.wrong, f.ambiguous, f.worst_p);
    EXPECT_EQ(f.wrong, 0);
    // Otherwise the bands would be too wide for the test to fail.
    EXPECT_LT(f.ambiguous, f.codes / 100);
  }
}

}  // namespace
}  // namespace lowtide::testing
