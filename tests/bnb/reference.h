// The step of each optimizer as docs/cpp.md defines it: plain formulas in double, independent of the portable rules,
// with the error that float32 may make in them.
#pragma once

#include "symbols.h"

namespace lowtide::testing {

// Running error analysis: a double beside a bound for how far float32 arithmetic may be from it. Every operation is one
// rounding, of 2^-24 of its result or of the smallest denormal.
struct Bounded {
  double value = 0, error = 0;

  static constexpr double kRounding = 0x1p-24, kTiny = 0x1p-149;

  // A number that float32 holds exactly.
  static Bounded exact(double x) { return {x, 0}; }
  // x, rounded to float32 once.
  static Bounded rounded(double x) { return Bounded{x, 0}.after_rounding(); }

  bool is_zero() const { return value == 0 && error == 0; }
  Bounded after_rounding() const {
    if (is_zero()) return *this;
    return {value, error + kRounding * (std::fabs(value) + error) + kTiny};
  }
};

inline Bounded operator-(Bounded a) { return {-a.value, a.error}; }
inline Bounded operator+(Bounded a, Bounded b) {
  if (a.is_zero()) return b;
  if (b.is_zero()) return a;
  return Bounded{a.value + b.value, a.error + b.error}.after_rounding();
}
inline Bounded operator-(Bounded a, Bounded b) { return a + -b; }
inline Bounded operator*(Bounded a, Bounded b) {
  if (a.is_zero() || b.is_zero()) return {};
  return Bounded{a.value * b.value, std::fabs(a.value) * b.error + std::fabs(b.value) * a.error + a.error * b.error}
      .after_rounding();
}
// b's error is below its value.
inline Bounded operator/(Bounded a, Bounded b) {
  if (a.is_zero()) return {};
  const double least = std::fabs(b.value) - b.error, quotient = a.value / b.value;
  return Bounded{quotient, (a.error + std::fabs(quotient) * b.error) / least}.after_rounding();
}
inline Bounded sqrt(Bounded a) {
  if (a.is_zero()) return {};
  const double root = std::sqrt(std::max(a.value, 0.0));
  const double below = root - std::sqrt(std::max(a.value - a.error, 0.0));
  return Bounded{root, std::max(below, std::sqrt(a.value + a.error) - root)}.after_rounding();
}

// One element: parameter, gradient (times gnorm_scale), and states in the order of docs/cpp.md: m, v, and ademamix'
// slow average.
struct BnbElement {
  Bounded p, g, s[3];
  bool ambiguous = false;  // Lion's sign is within the error of either
};

// Returns the amount to subtract from the parameter, without weight decay, and updates the states.
inline Bounded reference_update(const bnb::Update& u, BnbElement& e) {
  const auto number = [](double x) { return Bounded::rounded(x); };
  const auto average = [&](Bounded& s, double beta, Bounded x) { s = number(beta) * s + number(1 - beta) * x; };
  const Bounded lr = number(u.lr), eps = number(u.eps);
  const double bias1 = 1 - std::pow(static_cast<double>(u.beta1), u.step);
  const double root2 = std::sqrt(1 - std::pow(static_cast<double>(u.beta2), u.step));
  switch (u.family) {
    case bnb::Family::adam:
      average(e.s[0], u.beta1, e.g);
      average(e.s[1], u.beta2, e.g * e.g);
      return lr * (e.s[0] / number(bias1)) / (sqrt(e.s[1]) / number(root2) + eps);
    case bnb::Family::ademamix:
      average(e.s[0], u.beta1, e.g);
      average(e.s[1], u.beta2, e.g * e.g);
      average(e.s[2], u.beta3, e.g);
      return lr * (e.s[0] / number(bias1) + number(u.alpha) * e.s[2]) / (sqrt(e.s[1]) / number(root2) + eps);
    case bnb::Family::momentum:
      e.s[0] = u.step == 1 ? e.g : number(u.beta1) * e.s[0] + e.g;
      return lr * e.s[0];
    case bnb::Family::rmsprop:
      average(e.s[0], u.beta1, e.g * e.g);
      return lr * (e.g / (sqrt(e.s[0]) + eps));
    case bnb::Family::adagrad:
      e.s[0] = e.s[0] + e.g * e.g;
      return lr * (e.g / (sqrt(e.s[0]) + eps));
    case bnb::Family::lion: {
      const Bounded c = number(u.beta1) * e.s[0] + number(1 - static_cast<double>(u.beta1)) * e.g;
      e.ambiguous = !c.is_zero() && std::fabs(c.value) <= c.error;
      average(e.s[0], u.beta2, e.g);
      return c.value > 0 ? lr : c.value < 0 ? -lr : Bounded{};
    }
  }
  return {};
}

inline bool is_coupled(bnb::Family family) {
  return family == bnb::Family::momentum || family == bnb::Family::rmsprop || family == bnb::Family::adagrad;
}

// The element before its step, from the arrays of a call.
inline BnbElement element_before(const BnbCase& c, int64_t i) {
  const bnb::Update& u = c.u;
  BnbElement e;
  e.p = Bounded::exact(element_value(u.dtype, static_cast<const std::byte*>(u.p), i));
  e.g = Bounded::exact(element_value(u.dtype, static_cast<const std::byte*>(u.g), i)) * Bounded::exact(u.gnorm_scale);
  for (int k = 0; k < u.states(); ++k) {
    if (u.coded)
      e.s[k] = Bounded::exact(u.quantiles(k)[static_cast<const uint8_t*>(u.state(k))[i]]) *
               Bounded::exact(u.absmax(k)[i / 256]);
    else
      e.s[k] = Bounded::exact(static_cast<const float*>(u.state(k))[i]);
  }
  return e;
}

// The step; update_scale: of max_unorm.
inline void reference_step(const bnb::Update& u, Bounded update_scale, BnbElement& e) {
  const Bounded decay = Bounded::rounded(u.weight_decay);
  if (is_coupled(u.family)) e.g = e.g + decay * e.p;
  if (u.skip_zeros && e.g.value == 0) return;
  const Bounded update = update_scale * reference_update(u, e);
  const Bounded shrink = is_coupled(u.family) ? Bounded{} : Bounded::rounded(u.lr) * decay * e.p;
  e.p = e.p - (shrink + update);
}

// How far rounding to a type may take x.
inline double rounding_of(DType dtype, double x) {
  if (dtype == DType::kF32) return 0;  // the last operation's own
  return dtype == DType::kBF16 ? std::max(std::fabs(x) * 0x1p-8, 0x1p-134) : std::max(std::fabs(x) * 0x1p-11, 0x1p-25);
}

}  // namespace lowtide::testing
