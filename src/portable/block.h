// kBlock values share one scale. Blocks are cut from the start of each row; the last one may be short.
inline constexpr int kBlock = 256;

// Sums in an order that does not depend on the vector width. The caller adds x[k], x[n + k], ... into lane k of n, with
// zeros past the last value; this adds the upper half of the lanes to the lower until one is left.
template <int n>
LT_FN float sum_lanes(float (&lane)[n]) {
  for (int half = n / 2; half > 0; half /= 2)
    for (int k = 0; k < half; ++k) lane[k] = lane[k] + lane[k + half];
  return lane[0];
}

// How a codec rounds: to the nearest code, or to one of the two around a value, chosen by random_16(index, key), so
// that decoded values are correct on average.
struct Rounding {
  bool stochastic = false;
  RandomKey key = {0, 0};
};

// From this beta on, nearest rounding loses an average: its changes are too small to move a code.
inline constexpr double kStochasticBeta = 0.995;

// Decoding multiplies a block's codes by `scale`, encoding its values by `inverse`.
struct BlockScale {
  float scale, inverse;
};

// Reciprocal for encoding: values are multiplied by top / absmax. If absmax is zero or denormal it is 0, so that
// nothing becomes NaN or infinite: values encode as zero (or as the smallest code, where zero is not allowed).
LT_FN float block_inverse(float absmax, float top) { return absmax >= 0x1p-126f ? top / absmax : 0.f; }
LT_FN BlockScale absmax_scale(float absmax, float top) { return {absmax / top, block_inverse(absmax, top)}; }

// The code type and the number of scales per block that a codec uses for signed or unsigned states. Most codecs store
// both alike, with one scale or none.
template <class>
struct Void {
  using Type = void;
};
template <class C, bool kSigned, class = void>
struct StoredAs {
  using Code = typename C::Code;
  static constexpr int kScales = C::kScaled ? 1 : 0;
};
template <class C, bool kSigned>
struct StoredAs<C, kSigned, typename Void<typename C::template Stored<kSigned>>::Type> : C::template Stored<kSigned> {};

template <class C, bool kSigned>
using CodeOf = typename StoredAs<C, kSigned>::Code;
template <class C, bool kSigned>
inline constexpr int kScales = StoredAs<C, kSigned>::kScales;
inline constexpr int kMostScales = 2;
template <class C>
inline constexpr bool kHasPairs = kCodesOf<CodeOf<C, false>> == 2 || kCodesOf<CodeOf<C, true>> == 2;

// The scale of a block whose largest magnitude is absmax; 1 for codecs without scales.
template <class C, bool kSigned>
LT_FN BlockScale block_scale(float absmax) {
  if constexpr (C::kScaled)
    return C::template block_scale<kSigned>(absmax);
  else
    return {1.f, 1.f};
}

// Encodes element `index`. A codec that rounds to nearest ignores the random bits.
template <class C, bool kSigned, class F, class U>
LT_FN auto encode_at(const typename C::Tables& t, F value, F inverse, const Rounding& rounding, U index) {
  const U random = rounding.stochastic ? random_16(index, rounding.key) : U(0u);
  return C::template encode_with<kSigned>(t, value, inverse, rounding.stochastic, random);
}
