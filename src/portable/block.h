// Blocks: kBlock values share one scale. A row is cut into blocks from its start; the last one may be short.
inline constexpr int kBlock = 256;

// How a codec rounds: to the nearest code, or to one of the two codes around a value by random_16(index, key), so that
// what is decoded is the value on average.
struct Rounding {
  bool stochastic = false;
  RandomKey key = {0, 0};
};

// What codecs take for element `index`: nothing, where they need nothing.
template <class U>
LT_FN U random_of(U index, const Rounding& rounding) {
  return rounding.stochastic ? random_16(index, rounding.key) : U(0u);
}

// An average whose beta is at least this loses itself in nearest rounding: its codes move only by half a step or more.
inline constexpr double kStochasticBeta = 0.995;

// Of a block: what its codes are multiplied by, and what its values are multiplied by to be encoded.
struct BlockScale {
  float scale, inverse;
};

// Reciprocal for encoding: values are multiplied by top / absmax. Blocks whose absmax is zero or denormal use 0, so
// that nothing becomes NaN or infinite: their values encode as zero (or the smallest code, where zero is not allowed).
LT_FN float block_inverse(float absmax, float top) { return absmax >= 0x1p-126f ? top / absmax : 0.f; }
LT_FN BlockScale absmax_scale(float absmax, float top) { return {absmax / top, block_inverse(absmax, top)}; }

// Of a codec, for a block of a state of one kind; without scales nothing is scaled.
template <class C, bool kSigned>
LT_FN BlockScale block_scale(float absmax) {
  if constexpr (C::kScaled)
    return C::template block_scale<kSigned>(absmax);
  else
    return {1.f, 1.f};
}
