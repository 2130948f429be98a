// The vocabulary of the portable kernels for F = float, U = u32, M = bool. Vector types define the same functions.
LT_FN float sqrt(float x) { return __builtin_sqrtf(x); }
LT_FN float abs(float x) { return __builtin_fabsf(x); }
LT_FN float max(float a, float b) { return a > b ? a : b; }
LT_FN float min(float a, float b) { return a < b ? a : b; }
LT_FN float select(bool m, float a, float b) { return m ? a : b; }
LT_FN u32 select(bool m, u32 a, u32 b) { return m ? a : b; }
LT_FN u32 bits(float x) {
  u32 u;
  __builtin_memcpy(&u, &x, 4);
  return u;
}
LT_FN float as_float(u32 u) {
  float x;
  __builtin_memcpy(&x, &u, 4);
  return x;
}
LT_FN u32 truncate(float x) { return static_cast<u32>(static_cast<int>(x)); }  // for x in [0, 2^31)
LT_FN u32 gather(const u32* table, u32 i) { return table[i]; }
LT_FN float gather(const float* table, u32 i) { return table[i]; }
// Looks up by the lowest bits of i, in a table that fits into registers.
LT_FN u32 pick(const u32 (&table)[32], u32 i) { return table[i & 31u]; }
LT_FN float pick(const float (&table)[16], u32 i) { return table[i & 15u]; }

// Host only.
LT_HOST_FN double power(double base, double exponent) { return __builtin_pow(base, exponent); }

// Lion's sign: +1, -1, and 0 for both zeros.
template <class F>
LT_FN F sign(F x) {
  return select(x > F(0.f), F(1.f), select(x < F(0.f), F(-1.f), F(0.f)));
}

// p - x, but exactly p if x is a zero of either sign: a step of length 0 changes no bit. (x + 0 has no negative zero;
// -0 - (-0) would be +0.)
template <class F>
LT_FN F move(F p, F x) {
  return p - (x + F(0.f));
}
