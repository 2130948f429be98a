// SGD with momentum in torch.optim.SGD's form (Sutskever et al. 2013, but with the learning rate outside the momentum):
//   g = g + weight_decay p     b = momentum b + (1 - dampening) g, but b = g at the first step
//   p = p - lr (nesterov ? g + momentum b : b)

struct SgdArgs {
  float lr, l2;
  float keep, take;      // b = keep b + take g
  float from_g, from_b;  // direction = from_g g + from_b b
};

struct Sgd {
  using Args = SgdArgs;
  static constexpr bool kIsCommon = true;
  static constexpr HyperUse kHyper[] = {{"lr"}, {"momentum"}, {"dampening"}, {"nesterov"}, {"weight_decay"}};
  static constexpr int kStates = 1;
  static constexpr u32 kSigned = 0b1;
  static constexpr const char* kStateNames[] = {"momentum_buffer"};

  template <class H>
  LT_HOST_FN const char* refuses(const H& h) {
    return refuses_nesterov(h);
  }

  template <class H>
  LT_HOST_FN Args args(const H& h) {
    return Args{float(h.lr),
                float(h.weight_decay),
                h.first ? 0.f : float(h.momentum),
                h.first ? 1.f : float(1 - h.dampening),
                h.nesterov ? 1.f : 0.f,
                h.nesterov ? float(h.momentum) : 1.f};
  }

  template <class H>
  LT_HOST_FN double decay(const H& h, int) {
    return h.momentum;
  }

  template <class F>
  LT_FN F step(F p, F g, F (&s)[1], const Args& a) {
    g = g + p * a.l2;
    s[0] = s[0] * a.keep + g * a.take;
    return move(p, (g * a.from_g + s[0] * a.from_b) * a.lr);
  }
};

// Without momentum there is no state.
struct SgdPlain {
  using Family = Sgd;
  template <class H>
  LT_HOST_FN bool runs_for(const H& h) {
    return h.momentum == 0;
  }
  using Args = SgdArgs;
  static constexpr bool kIsCommon = true;
  static constexpr int kStates = 0;
  static constexpr u32 kSigned = 0;
  static constexpr const char* kStateNames[] = {nullptr};

  template <class H>
  LT_HOST_FN Args args(const H& h) {
    return Sgd::args(h);
  }

  template <class H>
  LT_HOST_FN double decay(const H&, int) {
    return 0;
  }

  template <class F>
  LT_FN F step(F p, F g, F*, const Args& a) {
    return move(p, (g + p * a.l2) * a.lr);
  }
};
