// Blocks: kBlock values share one scale. A row is cut into blocks from its start; the last one may be short.
inline constexpr int kBlock = 256;

// How a codec rounds. `nearest` ignores the key; `stochastic` uses random_bits(index, key).
struct Rounding {
  bool stochastic = false;
  RandomKey key = {0, 0};
};

// Reciprocal for encoding: values are multiplied by top / absmax. Blocks whose absmax is zero or denormal use 0, so
// that nothing becomes NaN or infinite: their values encode as zero (or the smallest code, where zero is not allowed).
LT_FN float block_inverse(float absmax, float top) { return absmax >= 0x1p-126f ? top / absmax : 0.f; }
