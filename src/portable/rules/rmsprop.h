// RMSprop (Tieleman & Hinton, Coursera lecture 6e, 2012; centered: Graves, arXiv 1308.0850, equations 38-45), like
// torch.optim.RMSprop:
//   g = g + weight_decay p      s = alpha s + (1 - alpha) g^2      a = alpha a + (1 - alpha) g  (centered)
//   d = g / (sqrt(s - a^2) + eps)      p = p - lr (momentum ? b : d),  b = momentum b + d
// If s - a^2 is no larger than the rounding error of the stored averages, the bound on that error replaces it: the
// difference would be noise, often zero or less, and give steps of g / eps.

struct RmspropArgs {
  float alpha, one_minus_alpha, eps, lr, l2, momentum;
  float least;  // least value of s - a^2, relative to s
};

struct RmspropBase {
  using Args = RmspropArgs;

  template <class H>
  LT_HOST_FN const char* refuses(const H& h) {
    return h.alpha < 1 ? nullptr : "got alpha={alpha} for RMSprop, wanted 0 <= alpha < 1";
  }
  template <class H>
  LT_HOST_FN Args args(const H& h) {
    constexpr double kAverages = 3;  // the difference has s's error once, a's twice
    return Args{float(h.alpha),    float(1 - h.alpha),        float(h.eps), float(h.lr), float(h.weight_decay),
                float(h.momentum), float(kAverages * h.error)};
  }

  // Averages decay by alpha; rules with a momentum buffer override this.
  template <class H>
  LT_HOST_FN double decay(const H& h, int) {
    return h.alpha;
  }

  template <class F>
  LT_FN F average(F s, F x, const Args& a) {
    return s * a.alpha + x * a.one_minus_alpha;
  }
  // The gradient divided by its root mean square, or by its deviation from the mean.
  template <class F>
  LT_FN F scaled(F g, F& square, const Args& a) {
    square = average(square, g * g, a);
    return g / (sqrt(square) + a.eps);
  }
  template <class F>
  LT_FN F scaled(F g, F& square, F& mean, const Args& a) {
    square = average(square, g * g, a);
    mean = average(mean, g, a);
    // A square that overflows (of a huge weight under an L2 penalty) counts alone, because inf - inf is NaN.
    const F spread = select(square < F(0x1p127f), max(square - mean * mean, square * a.least), square);
    return g / (sqrt(spread) + a.eps);
  }
};

struct Rmsprop : RmspropBase {
  static constexpr HyperUse kHyper[] = {{"lr", 1e-2}, {"alpha"}, {"eps"}, {"weight_decay"}, {"momentum"}, {"centered"}};
  static constexpr int kStates = 1;
  static constexpr u32 kSigned = 0b0;
  static constexpr const char* kStateNames[] = {"square_avg"};

  template <class F>
  LT_FN F step(F p, F g, F (&s)[1], const Args& a) {
    return move(p, scaled(g + p * a.l2, s[0], a) * a.lr);
  }
};

struct RmspropMomentum : RmspropBase {
  using Family = Rmsprop;
  template <class H>
  LT_HOST_FN bool runs_for(const H& h) {
    return h.momentum != 0 && !h.centered;
  }
  static constexpr int kStates = 2;
  static constexpr u32 kSigned = 0b10;
  static constexpr const char* kStateNames[] = {"square_avg", "momentum_buffer"};

  template <class H>
  LT_HOST_FN double decay(const H& h, int k) {
    return k == 1 ? h.momentum : h.alpha;
  }

  template <class F>
  LT_FN F step(F p, F g, F (&s)[2], const Args& a) {
    s[1] = s[1] * a.momentum + scaled(g + p * a.l2, s[0], a);
    return move(p, s[1] * a.lr);
  }
};

struct RmspropCentered : RmspropBase {
  using Family = Rmsprop;
  template <class H>
  LT_HOST_FN bool runs_for(const H& h) {
    return h.momentum == 0 && h.centered;
  }
  static constexpr int kStates = 2;
  static constexpr u32 kSigned = 0b10;
  static constexpr const char* kStateNames[] = {"square_avg", "grad_avg"};

  template <class F>
  LT_FN F step(F p, F g, F (&s)[2], const Args& a) {
    return move(p, scaled(g + p * a.l2, s[0], s[1], a) * a.lr);
  }
};

struct RmspropCenteredMomentum : RmspropBase {
  using Family = Rmsprop;
  template <class H>
  LT_HOST_FN bool runs_for(const H& h) {
    return h.momentum != 0 && h.centered;
  }
  static constexpr int kStates = 3;
  static constexpr u32 kSigned = 0b110;
  static constexpr const char* kStateNames[] = {"square_avg", "momentum_buffer", "grad_avg"};

  template <class H>
  LT_HOST_FN double decay(const H& h, int k) {
    return k == 1 ? h.momentum : h.alpha;
  }

  template <class F>
  LT_FN F step(F p, F g, F (&s)[3], const Args& a) {
    s[1] = s[1] * a.momentum + scaled(g + p * a.l2, s[0], s[2], a);
    return move(p, s[1] * a.lr);
  }
};
