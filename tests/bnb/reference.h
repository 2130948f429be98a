// The step of each optimizer as docs/bnb.md defines it: plain formulas in double, independent of the portable rules,
// with the error that float32 may make in them.
#pragma once

#include "bounded.h"
#include "symbols.h"

namespace lowtide::testing {

// One element: parameter, gradient (times gnorm_scale), and states in the order of docs/bnb.md: m, v, and ademamix'
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
