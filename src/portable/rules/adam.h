// Adam (Kingma & Ba, arXiv 1412.6980, algorithm 1) and AdamW (Loshchilov & Hutter, arXiv 1711.05101, algorithm 2).
//   m = b1 m + (1 - b1) g          v = b2 v + (1 - b2) g^2
//   p = p - (lr / (1 - b1^t)) m / (sqrt(v) / sqrt(1 - b2^t) + eps)
// Adam adds weight_decay * p to g (L2 penalty); AdamW subtracts lr * weight_decay * p too. (As one subtraction: a
// factor of 1 - lr * weight_decay in float32 would round away part of a small decay.)

struct AdamArgs {
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float step_size;          // lr / (1 - beta1^t)
  float inverse_sqrt_bias;  // 1 / sqrt(1 - beta2^t)
  float eps;
  float l2;     // Adam's weight decay; AdamW does not read it
  float decay;  // AdamW's lr * weight_decay; Adam does not read it
};

struct AdamBase {
  using Args = AdamArgs;
  static constexpr int kStates = 2;
  static constexpr u32 kSigned = 0b01;  // bit k: state k takes both signs; others are second moments, never negative
  static constexpr const char* kStateNames[] = {"exp_avg", "exp_avg_sq"};

  LT_HOST_FN Args args(const RuleInput& h) {
    const double bias1 = 1 - power(h.beta1, h.t), bias2 = 1 - power(h.beta2, h.t);
    return Args{float(h.beta1),     float(1 - h.beta1),    float(h.beta2),
                float(1 - h.beta2), float(h.lr / bias1),   float(1 / __builtin_sqrt(bias2)),
                float(h.eps),       float(h.weight_decay), float(h.lr * h.weight_decay)};
  }

  // Updates the moments; returns what is to be subtracted from the parameter.
  template <class F>
  LT_FN F update(F g, F (&s)[2], const Args& a) {
    s[0] = s[0] * a.beta1 + g * a.one_minus_beta1;
    s[1] = s[1] * a.beta2 + g * g * a.one_minus_beta2;
    return s[0] / (sqrt(s[1]) * a.inverse_sqrt_bias + a.eps) * a.step_size;
  }
};

struct Adam : AdamBase {
  template <class F>
  LT_FN F step(F p, F g, F (&s)[2], const Args& a) {
    return move(p, update(g + p * a.l2, s, a));
  }
};

struct AdamW : AdamBase {
  template <class F>
  LT_FN F step(F p, F g, F (&s)[2], const Args& a) {
    return move(p, p * a.decay + update(g, s, a));
  }
};
