// float8: 8-bit floating point with a power of two as the scale of each block of 256 within a row. Signed states have a
// sign, 3 bits of exponent and 4 of mantissa (E3M4); second moments have 4 of each (E4M4). Both have subnormals.
// Because scales are powers of two, all values of a state lie on one grid: a change of a block's largest value moves no
// other.
//
// Values x = value / scale are below 4, and the top code is 3.875: the scale is the smallest power of two at which no
// magnitude of the block exceeds it. A code is cut out of a float's bits. Let t = max(x, x / 2 + low / 2), where low is
// the smallest normal number: from low on, t equals x; below low, the mantissa of t is x. The code is t's exponent and
// upper 4 bits of mantissa, counted from those of x = 0. Stochastic rounding adds 16 random bits (plus half a bit) to
// the 19 bits that are cut off. Nearest rounding (for values from outside) adds half of a code's last bit, so ties go
// away from zero. A positive second moment below the smallest code becomes that code, never 0.
struct Float8 {
  using Code = u8;
  static constexpr const char* kName = "float8";
  static constexpr bool kScaled = true;
  static constexpr float kError = 0x1p-5f;              // bound on the relative error of typical values
  static constexpr bool kNeedsRandom[] = {true, true};  // [is signed]: averages rounded to nearest freeze far off
  static constexpr int kCut = 19;                       // mantissa bits of a float that a code drops
  struct Tables {};

  // Half of the smallest normal number, which is t at x = 0.
  template <bool kSigned>
  static constexpr float kHalfLow = kSigned ? 0x1p-6f : 0x1p-14f;
  template <bool kSigned>
  static constexpr u32 kZeroBits = (kSigned ? 127u - 6u : 127u - 14u) << 23;

  // The scale is 2^(e - 1) for absmax <= 1.9375 * 2^e. e is at least -100: codes of smaller values are near 0. It is at
  // most 127, because codes of the next scale would decode to infinity: values of a block above that become 1/32
  // smaller.
  template <bool kSigned>
  LT_FN BlockScale block_scale(float absmax) {
    constexpr u32 kLeast = (127u - 100u) << 23, kRoom = 0x7fffffu - 0x780000u;  // kRoom: the mantissas above 0.9375
    constexpr u32 kInfinity = 0x7f800000u, kLowered = 0x7c0000u;                // the denormal 2^-126 * 31/32
    u32 top = (bits(absmax) + kRoom) & kInfinity;
    if (top == kInfinity) return {0x1p126f, as_float(bits(absmax) == top ? 0u : kLowered)};  // makes infinities NaNs
    if (top < kLeast) top = kLeast;
    return {as_float(top - (1u << 23)), as_float((255u << 23) - top)};
  }

  template <bool kSigned, class U>
  LT_FN auto decode(const Tables&, U code) {
    const auto t = as_float(((kSigned ? code & U(0x7fu) : code) << kCut) + U(kZeroBits<kSigned>));
    using F = decltype(t + t);
    constexpr float kLow = 2 * kHalfLow<kSigned>;
    const F x = select(t < F(kLow), t + t - F(kLow), t);
    if constexpr (!kSigned) return x;
    return as_float(bits(x) | ((code & U(0x80u)) << 24));
  }

  template <bool kSigned, class F, class U>
  LT_FN U encode_with(const Tables&, F value, F inverse, bool stochastic, U random) {
    const F magnitude = max(abs(value * inverse), F(0.f));  // a NaN becomes 0
    const U t = bits(max(magnitude, magnitude * F(0.5f) + F(kHalfLow<kSigned>))) - U(kZeroBits<kSigned>);
    const U below = stochastic ? (random << (kCut - 16)) + U(1u << (kCut - 17)) : U(1u << (kCut - 1));
    const U code = (t + below) >> kCut;
    if constexpr (kSigned) return code | ((bits(value) >> 24) & U(0x80u));
    return select(value > F(0.f), select(code == U(0u), U(1u), code), U(0u));
  }
};
