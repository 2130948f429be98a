// State in bfloat16: 2 bytes, no scale. A positive second moment below half of the smallest denormal becomes that
// denormal, never 0. Stochastic rounding adds 16 random bits below the code, which carry into it.
struct Bf16 {
  using Code = bf16;
  static constexpr const char* kName = "bf16";
  static constexpr bool kScaled = false;
  static constexpr float kError = 0x1p-9f;  // bound on the relative error of typical values
  struct Tables {};

  // code: the value's 16 bits, in a U.
  template <bool kSigned, class U>
  LT_FN auto decode(const Tables&, U code) {
    return bf16_decode(code);
  }

  template <bool kSigned, class F, class U>
  LT_FN U encode_with(const Tables&, F value, F /*inverse*/, bool stochastic, U random) {
    const U code = stochastic ? bf16_stochastic(value, random) : bf16_encode(value);
    if constexpr (kSigned) return code;
    return select(value > F(0.f), select(code == U(0u), U(1u), code), code);
  }
};
