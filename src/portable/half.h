// Converts the bits of bf16 and fp16 to and from float, rounding to nearest, ties to even (IEEE 754); NaN stays NaN.
// Bit arithmetic makes all targets agree, even for denormals.

template <class U>
LT_FN auto bf16_decode(U h) {
  return as_float(h << 16);
}

// Returns the rounded value in the upper 16 bits; the lower bits are garbage.
template <class F>
LT_FN auto bf16_round(F x) {
  const auto u = bits(x);
  using U = decltype(u + u);
  const U rounded = u + U(0x7fffu) + ((u >> 16) & U(1u));
  return select(x == x, rounded, u | U(0x400000u));  // the carry could turn a NaN into infinity or -0
}

template <class F>
LT_FN auto bf16_encode(F x) {
  return bf16_round(x) >> 16;
}

template <class U>
LT_FN auto f16_decode(U h) {
  const auto magnitude = as_float((h & U(0x7fffu)) << 13);  // exponent still biased by 15: too small by 2^112
  using F = decltype(magnitude * magnitude);
  const F scaled = magnitude * F(0x1p112f);  // exact, denormal halves included
  // Exponent 31 (infinity, NaN) must become 255, but was scaled to 143.
  const U special = bits(scaled) + U((255u - 143u) << 23);
  const U u = select(scaled < F(0x1p16f), bits(scaled), special);
  return as_float(u | ((h & U(0x8000u)) << 16));
}

template <class F>
LT_FN auto f16_encode(F x) {
  const auto u = bits(x);
  using U = decltype(u + u);
  const U sign = (u >> 16) & U(0x8000u);
  const U m = u & U(0x7fffffffu);
  const F a = as_float(m);
  // Normal halves: add half of the last kept bit (to even), move the exponent by 112, drop 13 bits. From 65520 up to
  // 2^16 this carries into exponent 31 by itself; larger values are set to infinity.
  const U normal = (m + U(0xfffu) + ((m >> 13) & U(1u)) - U(112u << 23)) >> 13;
  // Denormal halves: adding 0.5 leaves the value, in units of 2^-24 and rounded by the adder, in the low bits.
  const U denormal = bits(a + F(0.5f)) - U(0x3f000000u);
  const U finite = select(a < F(0x1p-14f), denormal, normal);
  const U special = select(x == x, U(0x7c00u), U(0x7e00u) | ((m >> 13) & U(0x1ffu)));
  return select(a < F(0x1p16f), finite, special) | sign;
}
