// LAMB (You et al., arXiv 1904.00962, algorithm 2, phi(z) = z): AdamW whose update is as long as the parameter.
//   m = b1 m + (1 - b1) g          v = b2 v + (1 - b2) g^2
//   r = (m / (1 - b1^t)) / (sqrt(v) / sqrt(1 - b2^t) + eps) + weight_decay p
//   p = p - lr (|p| / |r|) r, or p - lr r if a norm is 0
// With max_unorm > 0 it is AdamW instead, with an update (without decay) at most max_unorm |p| long.

struct LambArgs : MomentArgs {
  float inverse_bias;  // 1 / (1 - beta1^t)
  float inside;        // weight decay of r
  float step_size;     // lr times the ratio
  float decay;         // weight decay beside r, times lr
};

struct Lamb : TwoMoments {
  using Args = LambArgs;
  static constexpr HyperUse kHyper[] = {{"lr"},       {"beta1"}, {"beta2"}, {"eps", 1e-6}, {"weight_decay", 1e-2},
                                        {"max_unorm"}};
  static constexpr bool kNormsReadState = true;

  template <class H>
  LT_HOST_FN Args args(const H& h) {
    const bool clips = h.max_unorm > 0;
    Args a{moment_args(h), float(1 / (1 - power(h.beta1, h.t))), clips ? 0.f : float(h.weight_decay), 0.f,
           clips ? float(h.lr * h.weight_decay) : 0.f};
    put_norms(a, h);
    return a;
  }
  template <class H>
  LT_FN void put_norms(Args& a, const H& h) {
    const double ratio = h.max_unorm > 0 ? clip_ratio(h) : has_norms(h) ? h.norm[0] / h.norm[1] : 1;
    a.step_size = finite_float(h.lr * ratio);
  }

  // Updates the moments; returns r.
  template <class F>
  LT_FN F update(F p, F g, F (&s)[2], const Args& a) {
    update_moments(g, s[0], s[1], a);
    return s[0] * a.inverse_bias / moment_root(s[1], a) + p * a.inside;
  }

  template <class F>
  LT_FN void terms(F p, F g, F (&s)[2], const Args& a, F (&out)[2]) {
    out[0] = p;
    out[1] = update(p, g, s, a);
  }

  template <class F>
  LT_FN F step(F p, F g, F (&s)[2], const Args& a) {
    return move(p, update(p, g, s, a) * a.step_size + p * a.decay);
  }
};
