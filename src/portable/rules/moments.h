// The two moments of Adam and similar rules, and the bias-corrected divisor of a step:
//   m = b1 m + (1 - b1) g          v = b2 v + (1 - b2) g^2          sqrt(v) / sqrt(1 - b2^t) + eps

struct MomentArgs {
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float inverse_sqrt_bias;  // 1 / sqrt(1 - beta2^t)
  float eps;
};

// The base of rules with exactly these states.
struct TwoMoments {
  static constexpr int kStates = 2;
  static constexpr u32 kSigned = 0b01;  // bit k: state k takes both signs; others are second moments, never negative
  static constexpr const char* kStateNames[] = {"exp_avg", "exp_avg_sq"};

  template <class H>
  LT_HOST_FN double decay(const H& h, int k) {
    return k == 0 ? h.beta1 : h.beta2;
  }
};

template <class H>
LT_HOST_FN MomentArgs moment_args(const H& h) {
  return MomentArgs{float(h.beta1),
                    float(1 - h.beta1),
                    float(h.beta2),
                    float(1 - h.beta2),
                    float(1 / __builtin_sqrt(1 - power(h.beta2, h.t))),
                    float(h.eps)};
}

template <class F>
LT_FN void update_moments(F g, F& m, F& v, const MomentArgs& a) {
  m = m * a.beta1 + g * a.one_minus_beta1;
  v = v * a.beta2 + g * g * a.one_minus_beta2;
}

template <class F>
LT_FN F moment_root(F v, const MomentArgs& a) {
  return sqrt(v) * a.inverse_sqrt_bias + a.eps;
}
