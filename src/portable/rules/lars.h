// LARS (You, Gitman & Ginsburg, arXiv 1708.03888, algorithm 1), with the learning rate outside the momentum and the
// options of torch.optim.SGD:
//   local = trust_coefficient |p| / (|g| + weight_decay |p| + eps), or 1 if a norm is 0
//   g = local (g + weight_decay p)
//   b = momentum b + (1 - dampening) g, but b = g at the first step
//   p = p - lr (nesterov ? g + momentum b : b)
// With max_unorm > 0, local is 1 and lr multiplies a direction at most max_unorm |p| long.

struct LarsArgs {
  float lr, l2, local;
  float keep, take;      // b = keep b + take g
  float from_g, from_b;  // direction = from_g g + from_b b
  float inside;          // weight decay in the direction whose norm is limited
};

struct LarsBase {
  using Args = LarsArgs;

  template <class H>
  LT_HOST_FN const char* refuses(const H& h) {
    return refuses_nesterov(h);
  }
  template <class H>
  LT_HOST_FN Args args(const H& h) {
    Args a{0.f,
           float(h.weight_decay),
           0.f,
           h.first ? 0.f : float(h.momentum),
           h.first ? 1.f : float(1 - h.dampening),
           h.nesterov ? 1.f : 0.f,
           h.nesterov ? float(h.momentum) : 1.f,
           h.max_unorm > 0 ? float(h.weight_decay) : 0.f};
    put_norms(a, h);
    return a;
  }
  template <class H>
  LT_FN void put_norms(Args& a, const H& h) {
    const bool clips = h.max_unorm > 0;
    double local = 1;
    if (!clips && has_norms(h))
      local = h.trust_coefficient * h.norm[0] / (h.norm[1] + h.weight_decay * h.norm[0] + h.eps);
    a.lr = float(h.lr * (clips ? clip_ratio(h) : 1));
    a.local = finite_float(local);
  }
  template <class H>
  LT_HOST_FN double decay(const H& h, int) {
    return h.momentum;
  }
  template <class F>
  LT_FN F direction(F p, F g, F (&s)[1], const Args& a) {
    g = (g + p * a.l2) * a.local;
    s[0] = s[0] * a.keep + g * a.take;
    return g * a.from_g + s[0] * a.from_b;
  }
};

struct Lars : LarsBase {
  static constexpr HyperUse kHyper[] = {{"lr"},  {"momentum", 0.9}, {"dampening"},         {"nesterov"},
                                        {"eps"}, {"weight_decay"},  {"trust_coefficient"}, {"max_unorm"}};
  static constexpr int kStates = 1;
  static constexpr u32 kSigned = 0b1;
  static constexpr const char* kStateNames[] = {"momentum_buffer"};
  static constexpr bool kNormsReadState = false;

  template <class F>
  LT_FN void terms(F p, F g, F*, const Args&, F (&out)[2]) {
    out[0] = p;
    out[1] = g;
  }
  template <class F>
  LT_FN F step(F p, F g, F (&s)[1], const Args& a) {
    return move(p, direction(p, g, s, a) * a.lr);
  }
};

// LARS with max_unorm.
struct LarsClipped : Lars {
  using Family = Lars;
  template <class H>
  LT_HOST_FN bool runs_for(const H& h) {
    return h.momentum != 0 && h.max_unorm > 0;
  }
  static constexpr bool kNormsReadState = true;

  template <class F>
  LT_FN void terms(F p, F g, F (&s)[1], const Args& a, F (&out)[2]) {
    out[0] = p;
    out[1] = direction(p, g, s, a);
  }
};

// LARS without momentum.
struct LarsPlain : LarsBase {
  using Family = Lars;
  template <class H>
  LT_HOST_FN bool runs_for(const H& h) {
    return h.momentum == 0;
  }
  static constexpr int kStates = 0;
  static constexpr u32 kSigned = 0;
  static constexpr const char* kStateNames[] = {nullptr};
  static constexpr bool kNormsReadState = false;

  template <class F>
  LT_FN void terms(F p, F g, F*, const Args& a, F (&out)[2]) {
    out[0] = p;
    out[1] = g + p * a.inside;
  }
  template <class F>
  LT_FN F step(F p, F g, F*, const Args& a) {
    return move(p, (g + p * a.l2) * a.local * a.lr);
  }
};
