// Blocks: kBlock values share one scale. A row is cut into blocks from its start; the last one may be short.
inline constexpr int kBlock = 256;

// A sum that vectors of any width take in the same order: lane k of n has added up x[k], x[n + k], ...; then the upper
// half of the lanes is added to the lower, until one is left. Places behind the last value are zeros.
template <int n>
LT_FN float sum_lanes(float (&lane)[n]) {
  for (int half = n / 2; half > 0; half /= 2)
    for (int k = 0; k < half; ++k) lane[k] = lane[k] + lane[k + half];
  return lane[0];
}

// How a codec rounds. `nearest` ignores the key; `stochastic` uses random_bits(index, key).
struct Rounding {
  bool stochastic = false;
  RandomKey key = {0, 0};
};

// Reciprocal for encoding: values are multiplied by top / absmax. Blocks whose absmax is zero or denormal use 0, so
// that nothing becomes NaN or infinite: their values encode as zero (or the smallest code, where zero is not allowed).
LT_FN float block_inverse(float absmax, float top) { return absmax >= 0x1p-126f ? top / absmax : 0.f; }
