// Adagrad (Duchi et al., JMLR 2011, diagonal form), like torch.optim.Adagrad:
//   g = g + weight_decay p                 s = s + g^2, from `initial`
//   p = p - lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps)

struct AdagradArgs {
  float step_size, eps, l2;
  float initial;  // joins the sum in the first step
};

struct Adagrad {
  using Args = AdagradArgs;
  static constexpr HyperUse kHyper[] = {
      {"lr", 1e-2}, {"eps", 1e-10}, {"weight_decay"}, {"lr_decay"}, {"initial_accumulator_value"}};
  static constexpr int kStates = 1;
  static constexpr u32 kSigned = 0b0;
  static constexpr const char* kStateNames[] = {"sum"};

  template <class H>
  LT_HOST_FN Args args(const H& h) {
    return Args{float(h.lr / (1 + (h.t - 1) * h.lr_decay)), float(h.eps), float(h.weight_decay),
                h.first ? float(h.initial_accumulator_value) : 0.f};
  }

  template <class H>
  LT_HOST_FN double decay(const H&, int) {
    return 1;
  }

  template <class F>
  LT_FN F step(F p, F g, F (&s)[1], const Args& a) {
    g = g + p * a.l2;
    s[0] = s[0] + g * g + F(a.initial);
    return move(p, g / (sqrt(s[0]) + a.eps) * a.step_size);
  }
};
