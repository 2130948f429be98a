// RMSprop (Tieleman & Hinton, Coursera lecture 6e, 2012; centered: Graves, arXiv 1308.0850, equations 38-45), as
// torch.optim.RMSprop has it:
//   g = g + weight_decay p      s = alpha s + (1 - alpha) g^2      a = alpha a + (1 - alpha) g  (centered)
//   d = g / (sqrt(s - a^2) + eps)      p = p - lr (momentum ? b : d),  b = momentum b + d
// What rounding of stored averages makes of s - a^2 below zero counts as zero.

struct RmspropArgs {
  float alpha, one_minus_alpha, eps, lr, l2, momentum;
};

struct RmspropBase {
  using Args = RmspropArgs;
  LT_HOST_FN Args args(const RuleInput& h) {
    return Args{float(h.alpha), float(1 - h.alpha),    float(h.eps),
                float(h.lr),    float(h.weight_decay), float(h.momentum)};
  }

  // The averages have alpha, the momentum buffer its momentum.
  LT_HOST_FN double decay(const RuleInput& h, int) { return h.alpha; }

  template <class F>
  LT_FN F average(F s, F x, const Args& a) {
    return s * a.alpha + x * a.one_minus_alpha;
  }
  // The gradient in units of its root mean square, or of its deviation from the mean.
  template <class F>
  LT_FN F scaled(F g, F& square, const Args& a) {
    square = average(square, g * g, a);
    return g / (sqrt(square) + a.eps);
  }
  template <class F>
  LT_FN F scaled(F g, F& square, F& mean, const Args& a) {
    square = average(square, g * g, a);
    mean = average(mean, g, a);
    return g / (sqrt(max(square - mean * mean, F(0.f))) + a.eps);
  }
};

struct Rmsprop : RmspropBase {
  static constexpr int kStates = 1;
  static constexpr u32 kSigned = 0b0;
  static constexpr const char* kStateNames[] = {"square_avg"};

  template <class F>
  LT_FN F step(F p, F g, F (&s)[1], const Args& a) {
    return move(p, scaled(g + p * a.l2, s[0], a) * a.lr);
  }
};

struct RmspropMomentum : RmspropBase {
  static constexpr int kStates = 2;
  static constexpr u32 kSigned = 0b10;
  static constexpr const char* kStateNames[] = {"square_avg", "momentum_buffer"};

  LT_HOST_FN double decay(const RuleInput& h, int k) { return k == 1 ? h.momentum : h.alpha; }

  template <class F>
  LT_FN F step(F p, F g, F (&s)[2], const Args& a) {
    s[1] = s[1] * a.momentum + scaled(g + p * a.l2, s[0], a);
    return move(p, s[1] * a.lr);
  }
};

struct RmspropCentered : RmspropBase {
  static constexpr int kStates = 2;
  static constexpr u32 kSigned = 0b10;
  static constexpr const char* kStateNames[] = {"square_avg", "grad_avg"};

  template <class F>
  LT_FN F step(F p, F g, F (&s)[2], const Args& a) {
    return move(p, scaled(g + p * a.l2, s[0], s[1], a) * a.lr);
  }
};

struct RmspropCenteredMomentum : RmspropBase {
  static constexpr int kStates = 3;
  static constexpr u32 kSigned = 0b110;
  static constexpr const char* kStateNames[] = {"square_avg", "momentum_buffer", "grad_avg"};

  LT_HOST_FN double decay(const RuleInput& h, int k) { return k == 1 ? h.momentum : h.alpha; }

  template <class F>
  LT_FN F step(F p, F g, F (&s)[3], const Args& a) {
    s[1] = s[1] * a.momentum + scaled(g + p * a.l2, s[0], s[2], a);
    return move(p, s[1] * a.lr);
  }
};
