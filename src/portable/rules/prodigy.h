// Prodigy (Mishchenko & Defazio, arXiv 2306.06101, algorithm 4), as the package prodigyopt has it: Adam whose learning
// rate is lr d, where d, one number for all parameters, is a lower bound of the distance to the solution that grows.
//   m = b1 m + (1 - b1) d g          v = b2 v + (1 - b2) d^2 g^2          rate = lr d sqrt(1 - b2^t) / (1 - b1^t)
//   s = b3 s + rate d / d0 g         n = b3 n + rate d / d0 <g, p0 - p>   rate: without the fraction unless
//   d' = d_coef n / |s|_1, at most growth_rate d; never smaller than d    use_bias_correction
//   p = p - rate (m / (sqrt(v) + d' eps) + weight_decay p)
// With safeguard_warmup, s takes d in place of the rate. The sums of n and |s|_1 go over all parameters whose lr is not
// 0, each with its own lr (the package refuses different ones). The state is not p0, which is as large as the weights,
// but p - p0, the sum of all steps.

struct ProdigyArgs {
  float beta1, take_m;  // m = beta1 m + take_m g
  float beta2, take_v;
  float beta3, take_s;
  float lr;
  float rate, eps, decay;
};

struct Prodigy {
  using Args = ProdigyArgs;
  static constexpr HyperUse kHyper[] = {{"lr", 1},
                                        {"beta1"},
                                        {"beta2"},
                                        {"d_beta"},
                                        {"eps"},
                                        {"weight_decay"},
                                        {"use_bias_correction"},
                                        {"safeguard_warmup"},
                                        {"d0"},
                                        {"d_coef"},
                                        {"growth_rate"}};
  static constexpr const char* kTooCoarse = "its s and p - p0 sum up all steps, which 4 bits would lose";
  static constexpr int kStates = 4;
  static constexpr u32 kSigned = 0b1101;
  static constexpr const char* kStateNames[] = {"exp_avg", "exp_avg_sq", "s", "p_minus_p0"};
  static constexpr u32 kSumsRead = 0b1100;

  // d, the largest d' so far, n, and the number of steps of the optimizer.
  static constexpr const char* kCarriedNames[] = {"d", "d_max", "d_numerator", "k"};
  static constexpr double kCarriedMost = 0x1.fffffffffffffp1023;
  static constexpr u32 kCarriedSigned = 0b0100;

  template <class H>
  LT_HOST_FN double beta3(const H& h) {
    return h.d_beta > 0 ? h.d_beta : __builtin_sqrt(h.beta2);
  }
  template <class H>
  LT_HOST_FN void before(const H& h, double (&now)[4]) {
    if (is_carried(h)) {
      for (int k = 0; k < 4; ++k) now[k] = h.carried[k];
    } else {
      now[0] = now[1] = h.d0;
      now[2] = now[3] = 0;
    }
  }
  template <class H>
  LT_HOST_FN double rate_of_1(const H& h, const double (&now)[4]) {  // for lr = 1
    const double t = now[3] + 1;
    return h.use_bias_correction ? now[0] * __builtin_sqrt(1 - power(h.beta2, t)) / (1 - power(h.beta1, t)) : now[0];
  }
  // True if the step moves anything: not with a learning rate of 0, nor before the first gradient that is not 0.
  template <class H>
  LT_HOST_FN bool moves(const H& h) {
    return h.lr != 0 && h.norm[1] != 0;
  }
  template <class H>
  LT_HOST_FN void carry(const H& h, double (&after)[4]) {
    before(h, after);
    if (!moves(h)) return;
    const double found = h.d_coef * (beta3(h) * after[2] + after[0] / h.d0 * rate_of_1(h, after) * h.norm[0]);
    const double d = found / h.norm[1];
    if (!(d >= -kCarriedMost && d <= kCarriedMost)) return;  // sums that are not finite tell nothing
    after[2] = found / h.d_coef;
    if (after[0] == h.d0 && after[0] < d) after[0] = d;
    if (after[1] < d) after[1] = d;
    const double grown = after[0] * h.growth_rate;
    after[0] = grown < after[1] ? grown : after[1];
    after[3] += 1;
  }

  template <class H>
  LT_HOST_FN Args args(const H& h) {
    double now[4], after[4];
    before(h, now);
    carry(h, after);
    const double d = now[0], r = h.lr * rate_of_1(h, now);
    const double eps = after[0] * h.eps;
    Args a{1, 0, 1, 0, 1, 0, float(h.lr), 0, float(eps > 0x1p-126 ? eps : 0x1p-126), 0};
    if (h.lr == 0) return a;
    a.beta3 = float(beta3(h));
    a.take_s = finite_float(d / h.d0 * (h.safeguard_warmup ? d : r));
    if (!moves(h)) return a;
    // Without a first moment the package takes g times the d that it has just found.
    a.beta1 = float(h.beta1), a.take_m = finite_float((h.beta1 > 0 ? d : after[0]) * (1 - h.beta1));
    a.beta2 = float(h.beta2), a.take_v = finite_float(d * d * (1 - h.beta2));
    a.rate = finite_float(r), a.decay = finite_float(r * h.weight_decay);
    return a;
  }

  template <class H>
  LT_HOST_FN double decay(const H& h, int k) {
    return k == 0 ? h.beta1 : k == 1 ? h.beta2 : k == 2 ? beta3(h) : 1;
  }

  template <class F>
  LT_FN F next_s(F g, F s, const Args& a) {
    return s * a.beta3 + g * a.take_s;
  }
  template <class F>
  LT_FN void terms(F, F g, F (&s)[4], const Args& a, F (&out)[2]) {
    out[0] = (F(0.f) - g * s[3]) * a.lr;
    out[1] = abs(next_s(g, s[2], a));
  }

  template <class F>
  LT_FN F step(F p, F g, F (&s)[4], const Args& a) {
    s[0] = s[0] * a.beta1 + g * a.take_m;
    s[1] = s[1] * a.beta2 + g * g * a.take_v;
    s[2] = next_s(g, s[2], a);
    // In two subtractions, as the package: early steps are as small as the weights' last bit, which decides about d.
    const F next = move(move(p, p * a.decay), s[0] / (sqrt(s[1]) + a.eps) * a.rate);
    s[3] = s[3] + (next - p);  // as the weights are rounded, so that it stays p - p0
    return next;
  }
};
