// Lion (Chen et al., arXiv 2302.06675, algorithm 2): the sign of an interpolation, then the momentum.
//   c = b1 m + (1 - b1) g      p = p - (lr weight_decay p + lr sign(c))      m = b2 m + (1 - b2) g

struct LionArgs {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, lr;
  float decay;  // lr * weight_decay
};

struct Lion {
  using Args = LionArgs;
  static constexpr bool kIsCommon = true;
  static constexpr HyperUse kHyper[] = {{"lr", 1e-4}, {"beta1"}, {"beta2", 0.99}, {"weight_decay"}};
  // Why its state cannot have 4 bits.
  static constexpr const char* kTooCoarse = "its step is the sign of an average that in 4 bits does not come to rest";
  static constexpr int kStates = 1;
  static constexpr u32 kSigned = 0b1;
  static constexpr const char* kStateNames[] = {"exp_avg"};

  template <class H>
  LT_HOST_FN Args args(const H& h) {
    return Args{float(h.beta1),     float(1 - h.beta1), float(h.beta2),
                float(1 - h.beta2), float(h.lr),        float(h.lr * h.weight_decay)};
  }

  template <class H>
  LT_HOST_FN double decay(const H& h, int) {
    return h.beta2;
  }

  template <class F>
  LT_FN F step(F p, F g, F (&s)[1], const Args& a) {
    const F c = s[0] * a.beta1 + g * a.one_minus_beta1;
    s[0] = s[0] * a.beta2 + g * a.one_minus_beta2;
    return move(p, p * a.decay + sign(c) * a.lr);
  }
};
