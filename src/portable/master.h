// 16-bit weights with more precision. Either a residual holds the bits that the weight lost, and both together are one
// number, the master; or the weight is rounded stochastically and correct on average.
//   residual16: bf16: exactly the float32 master. fp16: exactly, for magnitudes of 2^-14 and above; else to 2^-41.
//   residual8:  24 bits of the master (fp16: of 2^-14 and above; else to 2^-33), rounded to nearest.
// The weight is the master rounded to nearest, with ties away from zero (bf16) or to even (fp16). Splitting a master,
// joining it and splitting it again gives the same pair, so a step of length 0 changes nothing.

template <class T, int kBits>
struct Residual;  // kBits beside a T: join(half, residual), split(x, half, residual); residuals are sign-extended

template <int kBits>
struct Residual<bf16, kBits> {
  static constexpr int kDropped = 16 - kBits;

  template <class U>
  LT_FN auto join(U half, U residual) {
    return as_float((half << 16) + (residual << kDropped));
  }

  template <class F, class U>
  LT_FN void split(F x, U& half, U& residual) {
    const U u = bits(x);
    const U kept = kDropped ? (u + U(kDropped ? 1u << (kDropped ? kDropped - 1 : 0) : 0u)) >> kDropped : u;
    half = (kept + U(1u << (kBits - 1))) >> kBits;
    residual = kept - (half << kBits);
    const auto is_number = x == x;  // the carry would turn a NaN into something else
    half = select(is_number, half, (u >> 16) | U(0x40u)) & U(0xffffu);
    residual = select(is_number, residual, U(0u));
  }
};

template <int kBits>
struct Residual<f16, kBits> {
  // From 2^-14 on, a half lacks 13 bits of a float32, which the residual counts in units of 2^kUnit; below, the
  // residual counts the difference in units of 2^-(24 + kBits).
  static constexpr int kUnit = kBits == 16 ? 0 : 13 - kBits;
  static constexpr float kMagic = 0x1.8p23f;  // x + kMagic has x, rounded to an integer, in its low bits
  static constexpr float kUnits = kBits == 16 ? 0x1p40f : 0x1p32f;
  static constexpr u32 kMost = (1u << (kBits - 1)) - 1;

  // True for 2^-14 itself too: on one side its neighbour is 2^-24 away.
  template <class F>
  LT_FN auto is_small(F half) {
    return abs(half) < F(0x1.002p-14f);
  }

  template <class U>
  LT_FN auto join(U half, U residual) {
    const auto h = f16_decode(half);
    using F = decltype(h + h);
    const F difference = (as_float(bits(F(kMagic)) + residual) - F(kMagic)) * F(1 / kUnits);
    const F small = select(difference == F(0.f), h, h + difference);  // -0 stays -0
    return select(is_small(h), small, as_float(bits(h) + (residual << kUnit)));
  }

  template <class F, class U>
  LT_FN void split(F x, U& half, U& residual) {
    half = f16_encode(x);
    const F h = f16_decode(half);
    const U difference = bits(x) - bits(h) + U(kUnit ? 1u << (kUnit ? kUnit - 1 : 0) : 0u);
    // Shifts a signed number: adds 2^31 before and subtracts it after.
    const U units = ((difference + U(0x80000000u)) >> kUnit) - U(0x80000000u >> kUnit);
    const U small = bits((x - h) * F(kUnits) + F(kMagic)) - bits(F(kMagic));
    const U all = select(is_small(h), small, units);
    // The midpoint of two halves would be a tie when joined.
    const U up = select(all == U(kMost + 1u), U(u32{kMost}), all);
    residual = select(up == U(0u - kMost - 1u), U(0u - kMost), up);
    const auto is_finite = abs(h) < F(0x1p16f);  // no residual can restore a value that overflowed
    residual = select(is_finite, residual, U(0u));
  }
};

// Rounds x up with a probability proportional to its distance from the value below (in magnitude): unbiased, and exact
// for values that the type holds.
template <class F, class U>
LT_FN U bf16_stochastic(F x, U random) {
  const U u = bits(x);
  return select(x == x, u + (random & U(0xffffu)), u | U(0x400000u)) >> 16;
}

template <class F, class U>
LT_FN U f16_stochastic(F x, U random) {
  const U sign = (bits(x) >> 16) & U(0x8000u);
  const U m = bits(x) & U(0x7fffffffu);
  const F a = as_float(m);
  const U normal = (m - U(112u << 23) + (random & U(0x1fffu))) >> 13;
  // Below 2^-14, where halves are 2^-24 apart, takes the largest integer up to y plus a random fraction, in units of
  // 2^-24. The fraction has 13 bits: more would be lost in the sum with integers below 2^10 and might change those.
  const F y = a * F(0x1p24f) + (as_float(((random & U(0x1fffu)) << 10) | U(0x3f800000u)) - F(1.f));
  const F nearest = (y + F(0x1p23f)) - F(0x1p23f);
  const U small = bits((select(y < nearest, nearest - F(1.f), nearest)) + F(0x1p23f)) - bits(F(0x1p23f));
  const U finite = select(a < F(0x1p-14f), small, normal);
  return select(a < F(65504.f), finite, f16_encode(a)) | sign;
}
