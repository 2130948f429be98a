// mixed12: 12 bits for the two moments of a value: states that take both signs are stored as in dynamic4, second
// moments as in dynamic8.
struct Mixed12 {
  template <bool kSigned>
  struct Half;
  template <bool kSigned>
  using Stored = StoredAs<typename Half<kSigned>::Codec, kSigned>;
  static constexpr const char* kName = "mixed12";
  static constexpr bool kScaled = true;
  static constexpr float kError = Dynamic4::kError;
  static constexpr u32 kSignedZero = Dynamic4::kSignedZero;
  struct Tables {
    Dynamic8::Tables eight;
    Dynamic4::Tables four;
  };

  template <bool kSigned>
  LT_FN BlockScale block_scale(float absmax) {
    if constexpr (kSigned)
      return Dynamic4::block_scale<true>(absmax);
    else
      return Dynamic8::block_scale<false>(absmax);
  }

  template <bool kSigned, class U>
  LT_FN auto decode(const Tables& t, U code) {
    if constexpr (kSigned)
      return Dynamic4::decode<true>(t.four, code);
    else
      return Dynamic8::decode<false>(t.eight, code);
  }

  template <bool kSigned, class F, class U>
  LT_FN U encode_with(const Tables& t, F value, F inverse, bool stochastic, U random) {
    if constexpr (kSigned)
      return Dynamic4::encode_with<true>(t.four, value, inverse, stochastic, random);
    else
      return Dynamic8::encode_with<false>(t.eight, value, inverse, stochastic, random);
  }

  LT_HOST_FN void make_tables(Tables& t) {
    Dynamic8::make_tables(t.eight);
    Dynamic4::make_tables(t.four);
  }
};
template <>
struct Mixed12::Half<false> {
  using Codec = Dynamic8;
};
template <>
struct Mixed12::Half<true> {
  using Codec = Dynamic4;
};
