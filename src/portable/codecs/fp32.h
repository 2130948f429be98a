// State in float32, without rounding.
struct Fp32 {
  using Code = float;
  static constexpr const char* kName = "fp32";
  static constexpr bool kScaled = false;  // has a float32 scale per block
  static constexpr float kError = 0.f;    // bound on the relative error of typical values
  struct Tables {};

  template <bool kSigned, class F>
  LT_FN F decode(const Tables&, F code) {
    return code;
  }

  template <bool kSigned, class F, class U>
  LT_FN F encode_with(const Tables&, F value, F /*inverse*/, bool /*stochastic*/, U /*random*/) {
    return value;
  }
};
