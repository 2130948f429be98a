// Adam (Kingma & Ba, arXiv 1412.6980, algorithm 1) and AdamW (Loshchilov & Hutter, arXiv 1711.05101, algorithm 2).
//   m = b1 m + (1 - b1) g          v = b2 v + (1 - b2) g^2
//   p = p - (lr / (1 - b1^t)) m / (sqrt(v) / sqrt(1 - b2^t) + eps)
// AMSGrad (Reddi et al., arXiv 1904.09237, algorithm 2) divides by the root of the largest v so far. NAdam (Dozat 2016,
// as torch.optim.NAdam has it) looks ahead: mu_t = b1 (1 - 0.96^(t momentum_decay) / 2), M_t = mu_1 ... mu_t,
//   p = p - lr (mu_{t+1} m / (1 - M_{t+1}) + (1 - mu_t) g / (1 - M_t)) / (sqrt(v) / sqrt(1 - b2^t) + eps)
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

  LT_HOST_FN double decay(const RuleInput& h, int k) { return k == 0 ? h.beta1 : h.beta2; }

  // Updates the moments; returns what is to be subtracted from the parameter.
  template <class F>
  LT_FN F update(F g, F (&s)[2], const Args& a) {
    s[0] = s[0] * a.beta1 + g * a.one_minus_beta1;
    s[1] = s[1] * a.beta2 + g * g * a.one_minus_beta2;
    return s[0] / (sqrt(s[1]) * a.inverse_sqrt_bias + a.eps) * a.step_size;
  }
};

// Both kinds of weight decay.
template <class Base>
struct WithL2 : Base {
  template <class F>
  LT_FN F step(F p, F g, F (&s)[Base::kStates], const typename Base::Args& a) {
    return move(p, Base::update(g + p * a.l2, s, a));
  }
};
template <class Base>
struct WithDecay : Base {
  template <class F>
  LT_FN F step(F p, F g, F (&s)[Base::kStates], const typename Base::Args& a) {
    return move(p, p * a.decay + Base::update(g, s, a));
  }
};

struct AmsgradBase : AdamBase {
  static constexpr int kStates = 3;
  static constexpr u32 kSigned = 0b001;
  static constexpr const char* kStateNames[] = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};

  LT_HOST_FN double decay(const RuleInput& h, int k) { return k == 2 ? 0 : AdamBase::decay(h, k); }

  template <class F>
  LT_FN F update(F g, F (&s)[3], const Args& a) {
    s[0] = s[0] * a.beta1 + g * a.one_minus_beta1;
    s[1] = s[1] * a.beta2 + g * g * a.one_minus_beta2;
    s[2] = max(s[1], s[2]);
    return s[0] / (sqrt(s[2]) * a.inverse_sqrt_bias + a.eps) * a.step_size;
  }
};

struct NadamArgs {
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float from_m, from_g;  // times lr
  float inverse_sqrt_bias, eps, l2, decay;
};

struct NadamBase {
  using Args = NadamArgs;
  static constexpr int kStates = 2;
  static constexpr u32 kSigned = 0b01;
  static constexpr const char* kStateNames[] = {"exp_avg", "exp_avg_sq"};

  LT_HOST_FN double decay(const RuleInput& h, int k) { return AdamBase::decay(h, k); }
  LT_HOST_FN double mu(const RuleInput& h, double t) { return h.beta1 * (1 - 0.5 * power(0.96, t * h.momentum_decay)); }
  LT_HOST_FN Args args(const RuleInput& h) {
    double product = 1;  // mu_1 ... mu_t: nothing once it no longer changes 1 - product
    for (double i = 1; i <= h.t && product > 0x1p-60; ++i) product *= mu(h, i);
    const double now = mu(h, h.t), next = mu(h, h.t + 1);
    return Args{float(h.beta1),
                float(1 - h.beta1),
                float(h.beta2),
                float(1 - h.beta2),
                float(h.lr * next / (1 - product * next)),
                float(h.lr * (1 - now) / (1 - product)),
                float(1 / __builtin_sqrt(1 - power(h.beta2, h.t))),
                float(h.eps),
                float(h.weight_decay),
                float(h.lr * h.weight_decay)};
  }

  template <class F>
  LT_FN F update(F g, F (&s)[2], const Args& a) {
    s[0] = s[0] * a.beta1 + g * a.one_minus_beta1;
    s[1] = s[1] * a.beta2 + g * g * a.one_minus_beta2;
    return (s[0] * a.from_m + g * a.from_g) / (sqrt(s[1]) * a.inverse_sqrt_bias + a.eps);
  }
};

struct Adam : WithL2<AdamBase> {};
struct AdamW : WithDecay<AdamBase> {};
struct AdamAmsgrad : WithL2<AmsgradBase> {};
struct AdamWAmsgrad : WithDecay<AmsgradBase> {};
struct AdamNesterov : WithL2<NadamBase> {};
struct AdamWNesterov : WithDecay<NadamBase> {};
