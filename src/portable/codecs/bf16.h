// State in bfloat16: 2 bytes, no scale. A positive second moment is never stored as 0: below half of the smallest
// denormal it becomes that denormal. Stochastic: 16 random bits are added below the code and carry into it.
struct Bf16 {
  using Code = bf16;
  static constexpr const char* kName = "bf16";
  static constexpr bool kScaled = false;
  struct Tables {};

  // code: the 16 bits in a U.
  template <bool kSigned, class U>
  LT_FN auto decode(const Tables&, U code) {
    return bf16_decode(code);
  }

  template <bool kSigned, class F, class U>
  LT_FN U encode(const Tables& t, F value, F inverse, const Rounding& rounding, U index) {
    return encode_with<kSigned>(t, value, inverse, rounding.stochastic, random_of(index, rounding));
  }

  template <bool kSigned, class F, class U>
  LT_FN U encode_with(const Tables&, F value, F /*inverse*/, bool stochastic, U random) {
    U code = bf16_encode(value);
    if (stochastic) code = select(value == value, bits(value) + random, bits(value) | U(0x400000u)) >> 16;
    if constexpr (kSigned) return code;
    return select(value > F(0.f), select(code == U(0u), U(1u), code), code);
  }
};
