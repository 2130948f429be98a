// LAMB (You et al., arXiv 1904.00962, algorithm 2, phi(z) = z): AdamW whose update is as long as the parameter.
//   m = b1 m + (1 - b1) g          v = b2 v + (1 - b2) g^2
//   r = (m / (1 - b1^t)) / (sqrt(v) / sqrt(1 - b2^t) + eps) + weight_decay p
//   p = p - lr (|p| / |r|) r, and p - lr r where a norm is 0
// max_unorm > 0: instead, AdamW whose update, without its decay, is at most max_unorm |p| long.

struct LambArgs {
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float inverse_bias, inverse_sqrt_bias;  // 1 / (1 - beta1^t), 1 / sqrt(1 - beta2^t)
  float eps;
  float inside;     // weight decay of r
  float step_size;  // lr times the ratio
  float decay;      // weight decay beside r, times lr
};

struct Lamb {
  using Args = LambArgs;
  static constexpr int kStates = 2;
  static constexpr u32 kSigned = 0b01;
  static constexpr const char* kStateNames[] = {"exp_avg", "exp_avg_sq"};
  static constexpr bool kNormsReadState = true;

  LT_HOST_FN Args args(const RuleInput& h) {
    const bool clips = h.max_unorm > 0;
    const double ratio = clips ? clip_ratio(h) : has_norms(h) ? h.norm[0] / h.norm[1] : 1;
    return Args{float(h.beta1),
                float(1 - h.beta1),
                float(h.beta2),
                float(1 - h.beta2),
                float(1 / (1 - power(h.beta1, h.t))),
                float(1 / __builtin_sqrt(1 - power(h.beta2, h.t))),
                float(h.eps),
                clips ? 0.f : float(h.weight_decay),
                finite_float(h.lr * ratio),
                clips ? float(h.lr * h.weight_decay) : 0.f};
  }

  LT_HOST_FN double decay(const RuleInput& h, int k) { return k == 0 ? h.beta1 : h.beta2; }

  // Updates the moments; returns r.
  template <class F>
  LT_FN F update(F p, F g, F (&s)[2], const Args& a) {
    s[0] = s[0] * a.beta1 + g * a.one_minus_beta1;
    s[1] = s[1] * a.beta2 + g * g * a.one_minus_beta2;
    return s[0] * a.inverse_bias / (sqrt(s[1]) * a.inverse_sqrt_bias + a.eps) + p * a.inside;
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
