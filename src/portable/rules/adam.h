// Adam (Kingma & Ba, arXiv 1412.6980, algorithm 1) and AdamW (Loshchilov & Hutter, arXiv 1711.05101, algorithm 2).
//   m = b1 m + (1 - b1) g          v = b2 v + (1 - b2) g^2
//   p = p - (lr / (1 - b1^t)) m / (sqrt(v) / sqrt(1 - b2^t) + eps)
// AMSGrad (Reddi et al., arXiv 1904.09237, algorithm 2) divides by the root of the largest v so far. NAdam (Dozat 2016,
// like torch.optim.NAdam) looks ahead: mu_t = b1 (1 - 0.96^(t momentum_decay) / 2), M_t = mu_1 ... mu_t,
//   p = p - lr (mu_{t+1} m / (1 - M_{t+1}) + (1 - mu_t) g / (1 - M_t)) / (sqrt(v) / sqrt(1 - b2^t) + eps)
// Adam adds weight_decay * p to g (L2 penalty); AdamW also subtracts lr * weight_decay * p. (In one subtraction: a
// factor of 1 - lr * weight_decay in float32 would round away part of a small decay.)

struct AdamArgs : MomentArgs {
  float step_size;  // lr / (1 - beta1^t)
  float l2;         // Adam's weight decay; AdamW does not read it
  float decay;      // AdamW's lr * weight_decay; Adam does not read it
};

struct AdamBase : TwoMoments {
  using Args = AdamArgs;

  template <class H>
  LT_HOST_FN const char* refuses(const H& h) {
    return h.amsgrad && h.nesterov ? "got amsgrad and nesterov for {rule}, wanted one of them at most" : nullptr;
  }

  template <class H>
  LT_HOST_FN Args args(const H& h) {
    return Args{moment_args(h), float(h.lr / (1 - power(h.beta1, h.t))), float(h.weight_decay),
                float(h.lr * h.weight_decay)};
  }

  // Updates the moments; returns the amount to subtract from the parameter.
  template <class F>
  LT_FN F update(F g, F (&s)[2], const Args& a) {
    update_moments(g, s[0], s[1], a);
    return s[0] / moment_root(s[1], a) * a.step_size;
  }
};

// The two kinds of weight decay.
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

  template <class H>
  LT_HOST_FN bool runs_for(const H& h) {
    return h.amsgrad;
  }

  template <class H>
  LT_HOST_FN double decay(const H& h, int k) {
    return k == 2 ? 0 : TwoMoments::decay(h, k);
  }

  template <class F>
  LT_FN F update(F g, F (&s)[3], const Args& a) {
    update_moments(g, s[0], s[1], a);
    s[2] = max(s[1], s[2]);
    return s[0] / moment_root(s[2], a) * a.step_size;
  }
};

struct NadamArgs : MomentArgs {
  float from_m, from_g;  // times lr
  float l2, decay;
};

struct NadamBase : TwoMoments {
  using Args = NadamArgs;

  template <class H>
  LT_HOST_FN bool runs_for(const H& h) {
    return h.nesterov && !h.amsgrad;
  }

  static constexpr double kNoProduct = 0x1p-60;  // a product of mu of which 1 - product is 1: it stays as it is

  template <class H>
  LT_HOST_FN double mu(const H& h, double t) {
    return h.beta1 * (1 - 0.5 * power(0.96, t * h.momentum_decay));
  }
  // M_t from M_{t-1}; and from the hyper-parameters alone, as if they had never changed.
  template <class H>
  LT_HOST_FN double times_mu(double product, const H& h, double t) {
    return product > kNoProduct ? product * mu(h, t) : product;
  }
  template <class H>
  LT_HOST_FN double mu_product(const H& h, double steps) {
    double product = 1, t = 1;
    // 0.96^1000 / 2 is below 2^-59: from there on 1 minus it is 1, and mu is beta1.
    for (; t <= steps && product > kNoProduct && t * h.momentum_decay < 1000; ++t) product = times_mu(product, h, t);
    for (; t <= steps && product > kNoProduct; ++t) product *= h.beta1;
    return product;
  }

  static constexpr const char* kCarriedNames[] = {"mu_product"};
  static constexpr double kCarriedMost = 1;
  template <class H>
  LT_HOST_FN double product_after(const H& h) {
    return is_carried(h) ? times_mu(h.carried[0], h, h.t) : mu_product(h, h.t);
  }
  template <class H>
  LT_HOST_FN void carry(const H& h, double (&after)[1]) {
    after[0] = product_after(h);
  }

  template <class H>
  LT_HOST_FN Args args(const H& h) {
    const double product = product_after(h);
    const double now = mu(h, h.t), next = mu(h, h.t + 1);
    return Args{moment_args(h), float(h.lr * next / (1 - product * next)), float(h.lr * (1 - now) / (1 - product)),
                float(h.weight_decay), float(h.lr * h.weight_decay)};
  }

  template <class F>
  LT_FN F update(F g, F (&s)[2], const Args& a) {
    update_moments(g, s[0], s[1], a);
    return (s[0] * a.from_m + g * a.from_g) / moment_root(s[1], a);
  }
};

struct Adam : WithL2<AdamBase> {
  static constexpr HyperUse kHyper[] = {{"lr"},           {"beta1"},    {"beta2"},   {"eps"},
                                        {"weight_decay"}, {"nesterov"}, {"amsgrad"}, {"momentum_decay"}};
  static constexpr bool kIsCommon = true;  // worth kernels of its own for 16-bit parameters and gradients
};
struct AdamW : WithDecay<AdamBase> {
  static constexpr HyperUse kHyper[] = {{"lr"},       {"beta1"},   {"beta2"},         {"eps"}, {"weight_decay", 1e-2},
                                        {"nesterov"}, {"amsgrad"}, {"momentum_decay"}};
  static constexpr bool kIsCommon = true;
};
struct AdamAmsgrad : WithL2<AmsgradBase> {
  using Family = Adam;
};
struct AdamWAmsgrad : WithDecay<AmsgradBase> {
  using Family = AdamW;
};
struct AdamNesterov : WithL2<NadamBase> {
  using Family = Adam;
};
struct AdamWNesterov : WithDecay<NadamBase> {
  using Family = AdamW;
};
