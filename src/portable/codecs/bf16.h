// State in bfloat16: 2 bytes, no scale. A positive second moment is never stored as 0: a value below half of the
// smallest denormal becomes that denormal. Stochastic: 16 random bits are added below the code and carry into it.
struct Bf16 {
  using Code = bf16;
  static constexpr const char* kName = "bf16";
  static constexpr bool kScaled = false;
  static constexpr float kError = 0x1p-9f;  // bound of a typical value's relative error
  struct Tables {};

  // code: the 16 bits, in a U.
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
