// Every optimizer symbol against plain formulas in double: parameters, states, absmax values and codes within what
// float32 arithmetic may be off by (Bounded), and codes the nearest of the caller's map.
#include "reference.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

struct Checked {
  int64_t elements = 0, wrong = 0, codes = 0, wrong_codes = 0, ambiguous = 0;
  double worst = 0;  // error / bound
};

// Ascending maps other than dynamic8's: the same with one unit in the last place off, as machines without a fused
// multiply-add make it; evenly spaced; and random, with entries that are equal.
std::array<float, 256> make_map(Rng& rng, bool is_signed) {
  std::array<float, 256> map = make_dynamic_map(is_signed);
  switch (rng.below(4)) {
    case 0:
      break;
    case 1:
      for (int i = 0; i < 40; ++i) map[static_cast<size_t>(rng.between(130, 250))] *= 1 - 0x1p-24f;
      break;
    case 2:
      for (size_t i = 0; i < 256; ++i)
        map[i] = is_signed ? (static_cast<float>(i) - 128) / 128 : static_cast<float>(i) / 255;
      break;
    default:
      for (float& value : map) value = static_cast<float>(is_signed ? 2 * rng.uniform() - 1 : rng.uniform());
      map[0] = is_signed ? -1.f : 0.f, map[1] = map[2], map[255] = 1.f;
      map[3] = 0;  // without it a sum of squares that is 0 would become negative, and its root NaN
      std::sort(map.begin(), map.end());
  }
  return map;
}

// Within twice the bound: the implementation may have its operations in another order.
void check_value(double got, Bounded wanted, double rounding, Checked& checked) {
  const double bound = 2 * wanted.error + rounding + 1e-300, error = std::fabs(got - wanted.value);
  ++checked.elements;
  checked.wrong += !(error <= bound);
  checked.worst = std::max(checked.worst, error / bound);
}

void check_state(const BnbCase& c, int k, const std::vector<BnbElement>& wanted, Checked& checked) {
  const bnb::Update& u = c.u;
  if (!u.coded) {
    for (size_t i = 0; i < wanted.size(); ++i)
      check_value(static_cast<const float*>(u.state(k))[i], wanted[i].s[k], 0, checked);
    return;
  }
  const auto* codes = static_cast<const uint8_t*>(u.state(k));
  const float* map = u.quantiles(k);
  const double positive = *std::upper_bound(map, map + 255, 0.f);  // the smallest entry above 0, or the last one
  for (int64_t b = 0; b < u.blocks(); ++b) {
    const int64_t begin = b * 256, end = std::min(u.n, begin + 256);
    Bounded absmax;
    for (int64_t i = begin; i < end; ++i) {
      const Bounded& s = wanted[static_cast<size_t>(i)].s[k];
      absmax = {std::max(absmax.value, std::fabs(s.value)), std::max(absmax.error, s.error)};
    }
    const double got = u.absmax(k)[b];
    check_value(got, absmax, 0, checked);
    for (int64_t i = begin; i < end; ++i, ++checked.codes) {
      const Bounded& s = wanted[static_cast<size_t>(i)].s[k];
      const double x = got > 0 ? s.value / got : 0;
      const double slack = got > 0 ? 2 * (2 * s.error / got + 3 * Bounded::kRounding * std::fabs(x)) : 0;
      double nearest = 2;
      for (int q = 0; q < 256; ++q) nearest = std::min(nearest, std::fabs(map[q] - x));
      const double entry = map[codes[i]];
      const bool kept_positive = u.is_second_moment(k) && s.value > 0 && entry == positive && x < positive;
      checked.wrong_codes += !(std::fabs(entry - x) <= nearest + slack || kept_positive);
      checked.wrong_codes += u.is_second_moment(k) && s.value > s.error && got >= 0x1p-126 && entry <= 0;
    }
  }
}

// The limit's factor, and what *unorm should be.
Bounded update_scale(const BnbCase& c, Bounded& squares) {
  bnb::Update u = c.u;
  u.lr = 1;
  for (int64_t i = 0; i < u.n; ++i) {
    BnbElement e = element_before(c, i);
    const Bounded one = reference_update(u, e);
    squares.value += one.value * one.value;
    squares.error += 2 * std::fabs(one.value) * one.error + one.error * one.error;
  }
  squares = squares.after_rounding();
  const double slack = u.family == bnb::Family::adam ? 0 : u.eps;
  const double most = static_cast<double>(u.max_unorm) * u.param_norm + slack;
  const Bounded norm = sqrt(squares);
  return norm.value > most ? Bounded::exact(most) / norm : Bounded::exact(1);
}

void check_step(BnbCase& c, Checked& checked) {
  const bnb::Update& u = c.u;
  Bounded scale = Bounded::exact(1), squares;
  if (u.is_limited()) scale = update_scale(c, squares);
  std::vector<BnbElement> wanted;
  for (int64_t i = 0; i < u.n; ++i) {
    wanted.push_back(element_before(c, i));
    reference_step(u, scale, wanted.back());
  }
  lt_bnb_clear_error();
  c.symbol.call(u);
  ASSERT_STREQ(lt_bnb_last_error(), "");
  for (int64_t i = 0; i < u.n; ++i) {
    const BnbElement& e = wanted[static_cast<size_t>(i)];
    checked.ambiguous += e.ambiguous;
    if (!e.ambiguous)
      check_value(element_value(u.dtype, static_cast<const std::byte*>(u.p), i), e.p, rounding_of(u.dtype, e.p.value),
                  checked);
  }
  for (int k = 0; k < u.states(); ++k) check_state(c, k, wanted, checked);
  if (u.is_limited()) check_value(c.unorm, squares, 0, checked);
}

TEST(BnbSymbols, EachIsItsFormula) {
  auto rng = seeded("bnb symbols", 801);
  Checked all;
  int steps = 0;
  for (const BnbSymbol& symbol : bnb_symbols()) {
    Checked checked;
    for (const int64_t n : {0, 1, 255, 256, 257, 1000}) {
      BnbCase c(symbol, n);
      bnb::Update& u = c.u;
      c.maps[0] = make_map(rng, true);
      c.maps[1] = make_map(rng, false);
      c.set_random_parameter(rng);
      if (rng.chance(0.5)) u.weight_decay = 0;
      if (rng.chance(0.5)) u.gnorm_scale = 0.37f;
      u.skip_zeros = rng.chance(0.3);
      if (!u.coded && rng.chance(0.5)) u.max_unorm = 0.5f, u.param_norm = static_cast<float>(rng.uniform());
      for (u.step = 1; u.step <= 4; ++u.step, ++steps) {
        c.set_random_gradient(rng);
        check_step(c, checked);
      }
    }
    EXPECT_EQ(checked.wrong, 0) << symbol.name;
    EXPECT_EQ(checked.wrong_codes, 0) << symbol.name;
    all.elements += checked.elements, all.wrong += checked.wrong, all.ambiguous += checked.ambiguous;
    all.codes += checked.codes, all.wrong_codes += checked.wrong_codes, all.worst = std::max(all.worst, checked.worst);
  }
  figure(
      "{} symbols, {} steps, {} numbers: {} off by more than float32 allows (worst {} of it); {} codes: {} not the "
      "nearest; {} signs too close to call",
      bnb_symbols().size(), steps, all.elements, all.wrong, all.worst, all.codes, all.wrong_codes, all.ambiguous);
  EXPECT_EQ(bnb_symbols().size(), 33u);
  EXPECT_LT(all.ambiguous * 1000, all.elements);
}

TEST(BnbSymbols, ZeroGradientsMoveNothingAndStaySparse) {
  auto rng = seeded("bnb skip_zeros", 802);
  int64_t kept = 0, moved = 0;
  for (const BnbSymbol& symbol : bnb_symbols()) {
    BnbCase c(symbol, 700);
    c.u.weight_decay = 0, c.u.skip_zeros = true;
    c.set_random_parameter(rng);
    c.set_random_gradient(rng);
    const auto before = c.arrays[0];
    symbol.call(c.u);
    for (int64_t i = 0; i < c.u.n; ++i) {
      const bool zero = element_value(c.u.dtype, static_cast<const std::byte*>(c.u.g), i) == 0;
      const auto* was = reinterpret_cast<const std::byte*>(before.data());
      if (!zero) continue;
      ++kept;
      moved += element_value(c.u.dtype, was, i) != element_value(c.u.dtype, static_cast<const std::byte*>(c.u.p), i);
    }
  }
  figure("{} elements without a gradient: {} moved", kept, moved);
  EXPECT_GT(kept, 1000);
  EXPECT_EQ(moved, 0);
}

// Blocks of ademamix' slow average have absmax values of their own, also where n is no multiple of 256.
TEST(BnbSymbols, TheSlowAverageHasScalesOfItsOwn) {
  auto rng = seeded("bnb ademamix", 803);
  for (const BnbSymbol& symbol : bnb_symbols()) {
    if (symbol.family != bnb::Family::ademamix || !symbol.coded) continue;
    BnbCase c(symbol, 300);
    c.set_random_parameter(rng);
    c.set_random_gradient(rng);
    symbol.call(c.u);
    std::set<float> scales(c.absmax[0].begin(), c.absmax[0].begin() + 4);
    EXPECT_EQ(scales.size(), 4u) << symbol.name;
    EXPECT_FALSE(scales.contains(0.f)) << symbol.name;
    EXPECT_EQ(c.absmax[0][4], 0.f) << symbol.name << ": behind the last";
  }
}

}  // namespace
}  // namespace lowtide::testing
