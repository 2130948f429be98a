// AdEMAMix (Pagliardini et al., arXiv 2409.03137, algorithm 1): AdamW with a second, slow average of gradients.
//   m1 = b1 m1 + (1 - b1) g      m2 = b3(t) m2 + (1 - b3(t)) g      v = b2 v + (1 - b2) g^2
//   p = p - lr ((m1 / (1 - b1^t) + alpha(t) m2) / (sqrt(v) / sqrt(1 - b2^t) + eps) + weight_decay p)
// alpha(t) = min(alpha t / t_alpha, alpha). b3(t) goes from b1 to b3 in t_beta3 steps, its half-life growing evenly
// (the paper's scheduler of beta3). Where t_alpha or t_beta3 is 0, alpha or b3 applies from the start.

struct AdemamixArgs : MomentArgs {
  float beta3, one_minus_beta3;
  float step_size;  // lr / (1 - beta1^t)
  float slow_size;  // lr alpha(t)
  float decay;      // lr * weight_decay
};

struct Ademamix {
  using Args = AdemamixArgs;
  static constexpr HyperUse kHyper[] = {
      {"lr"}, {"beta1"}, {"beta2"}, {"beta3"}, {"eps"}, {"weight_decay", 1e-2}, {"alpha", 5}, {"t_alpha"}, {"t_beta3"}};
  static constexpr int kStates = 3;
  static constexpr u32 kSigned = 0b101;
  static constexpr const char* kStateNames[] = {"exp_avg", "exp_avg_sq", "exp_avg_slow"};

  template <class H>
  LT_HOST_FN const char* refuses(const H& h) {
    return __builtin_isfinite(float(h.lr * h.alpha))
               ? nullptr
               : "got lr={lr} with alpha={alpha}, wanted lr * alpha that float32 can hold";
  }
  template <class H>
  LT_HOST_FN double scheduled_beta3(const H& h) {
    if (!(h.t_beta3 > h.t && h.beta1 > 0 && h.beta3 > 0)) return h.beta3;
    const double share = h.t / h.t_beta3, log1 = __builtin_log(h.beta1), log3 = __builtin_log(h.beta3);
    const double scheduled = __builtin_exp(log1 * log3 / ((1 - share) * log3 + share * log1));
    return scheduled < h.beta3 ? scheduled : h.beta3;
  }
  template <class H>
  LT_HOST_FN Args args(const H& h) {
    const double alpha = h.t_alpha > h.t ? h.alpha * h.t / h.t_alpha : h.alpha, beta3 = scheduled_beta3(h);
    return Args{moment_args(h),
                float(beta3),
                float(1 - beta3),
                float(h.lr / (1 - power(h.beta1, h.t))),
                float(h.lr * alpha),
                float(h.lr * h.weight_decay)};
  }

  template <class H>
  LT_HOST_FN double decay(const H& h, int k) {
    return k < 2 ? TwoMoments::decay(h, k) : scheduled_beta3(h);
  }

  template <class F>
  LT_FN F step(F p, F g, F (&s)[3], const Args& a) {
    update_moments(g, s[0], s[1], a);
    s[2] = s[2] * a.beta3 + g * a.one_minus_beta3;
    const F direction = s[0] * a.step_size + s[2] * a.slow_size;
    return move(p, p * a.decay + direction / moment_root(s[1], a));
  }
};
