// Schedule-Free AdamW (Defazio et al., arXiv 2405.15682, algorithm 1, with its weight decay at y), like the package
// schedulefree. z takes AdamW's steps without a first moment, x is the average of all z, and gradients are taken at y,
// between them:
//   v = b2 v + (1 - b2) g^2                u = g / (sqrt(v) / sqrt(1 - b2^t) + eps) + weight_decay y
//   z = z - lr_t u      x = (1 - c) x + c z      y = (1 - b1) z + b1 x      lr_t = lr min(1, t / warmup_steps)
//   c = w_t / (w_1 + ... + w_t),  w_t = t^r (the largest lr_i so far)^weight_lr_power
// The weights are y. The state is not z, which is as large as the weights, but d = z - y, a sum of steps:
//   y = y + c d - lr_t (1 - b1 (1 - c)) u      d = (1 - c) (d - b1 lr_t u)      x = y - d (1 - b1) / b1

struct ScheduleFreeArgs {
  float beta2, one_minus_beta2;
  float inverse_sqrt_bias, eps;  // as in MomentArgs
  float decay;
  float from_u, from_d;  // y loses from_u * u and gains from_d * d
  float keep, take;      // d = keep d - take u
};

struct AdamWScheduleFree {
  using Args = ScheduleFreeArgs;
  static constexpr HyperUse kHyper[] = {{"lr", 2.5e-3},   {"beta1"},        {"beta2"}, {"eps"},
                                        {"weight_decay"}, {"warmup_steps"}, {"r"},     {"weight_lr_power"}};
  static constexpr const char* kTooCoarse = "its z - y sums up all steps, which 4 bits would lose";
  static constexpr int kStates = 2;
  static constexpr u32 kSigned = 0b01;
  static constexpr const char* kStateNames[] = {"z_minus_y", "exp_avg_sq"};

  static constexpr double kLeastBeta1 = 0.01;
  template <class H>
  LT_HOST_FN const char* refuses(const H& h) {
    return h.beta1 >= kLeastBeta1 ? nullptr
                                  : "got beta1={beta1} for {rule}, wanted 0.01 or more: x is found from y and z by "
                                    "dividing by it";
  }

  // The sum of all w, and the largest rate.
  static constexpr const char* kCarriedNames[] = {"weight_sum", "lr_max"};
  static constexpr double kCarriedMost = 0x1.fffffffffffffp1023;
  template <class H>
  LT_HOST_FN double rate(const H& h, double t) {
    return t < h.warmup_steps ? h.lr * (t / h.warmup_steps) : h.lr;
  }
  template <class H>
  LT_HOST_FN double weight(const H& h, double t, double most) {
    return power(t, h.r) * power(most, h.weight_lr_power);
  }
  // Sum of i^q for i from `first` + 1 to `last`, by Euler-Maclaurin: accurate to 1e-12 if `first` is kOneByOne.
  LT_HOST_FN double sum_of_powers(double first, double last, double q) {
    const double a = power(first, q), b = power(last, q);
    return (last * b - first * a) / (q + 1) + (b - a) / 2 + q / 12 * (b / last - a / first);
  }
  static constexpr double kOneByOne = 4096;
  template <class H>
  LT_HOST_FN void carry(const H& h, double (&after)[2]) {
    double sum = 0;
    if (is_carried(h)) {
      const double now = rate(h, h.t);
      after[1] = h.carried[1] > now ? h.carried[1] : now;
      sum = h.carried[0] + weight(h, h.t, after[1]);
    } else {
      after[1] = h.t > 0 ? rate(h, h.t) : 0;  // with equal hyper-parameters the rate never falls
      double t = 0;
      while (t < h.t && t < kOneByOne) ++t, sum += weight(h, t, rate(h, t));
      if (const double end = h.t < h.warmup_steps ? h.t : __builtin_floor(h.warmup_steps); t < end) {
        sum += power(h.lr / h.warmup_steps, h.weight_lr_power) * sum_of_powers(t, end, h.r + h.weight_lr_power);
        t = end;
      }
      if (t < h.t) sum += power(h.lr, h.weight_lr_power) * sum_of_powers(t, h.t, h.r);
    }
    after[0] = sum < kCarriedMost ? sum : kCarriedMost;
  }
  template <class H>
  LT_HOST_FN double share(const H& h) {  // c
    double after[2];
    carry(h, after);
    const double c = weight(h, h.t, after[1]) / after[0];
    return c <= 1 ? c : after[0] > 0 ? 1 : 0;  // 0 / 0: all weights so far are 0, or too small, so x stays
  }

  template <class H>
  LT_HOST_FN Args args(const H& h) {
    const double c = share(h), lr = rate(h, h.t);
    return Args{float(h.beta2), float(1 - h.beta2),    float(1 / __builtin_sqrt(1 - power(h.beta2, h.t))),
                float(h.eps),   float(h.weight_decay), float(lr * (1 - h.beta1 * (1 - c))),
                float(c),       float(1 - c),          float((1 - c) * h.beta1 * lr)};
  }

  template <class H>
  LT_HOST_FN double decay(const H& h, int k) {
    return k == 0 ? 1 - share(h) : h.beta2;
  }
  // Moves y to x, or x to y. The second moment does not change.
  template <class H>
  LT_HOST_FN Args average_args(const H& h, bool evaluating) {
    const double far = (1 - h.beta1) / h.beta1;
    return Args{1, 0, 1, float(h.eps), 0, 0, float(evaluating ? -far : far), 1, 0};
  }

  template <class F>
  LT_FN F step(F p, F g, F (&s)[2], const Args& a) {
    s[1] = s[1] * a.beta2 + g * g * a.one_minus_beta2;
    const F u = g / (sqrt(s[1]) * a.inverse_sqrt_bias + a.eps) + p * a.decay;
    const F moved = u * a.from_u - s[0] * a.from_d;
    s[0] = s[0] * a.keep - u * a.take;
    return move(p, moved);
  }
};
