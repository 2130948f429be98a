// The float of steps whose operands are known to be in range. Division and square root have no range tests, which cost
// more than the arithmetic. Included in the namespace of a .cu file after the portable kernels.
//
// In exact files, results have IEEE 754's bits for operands that LaneBlocks (step-inl.h) accepts: the sequences are
// nvcc's own fast paths, whose results depend on exponents only if something over- or underflows. With 2^-100 <= x <
// 2^25 or x = 0 the remainder x - g g of the square root is a multiple of 2^-149 and exact. With 2^-96 <= |a| < 2^61 or
// a = 0, and 2^-60 <= b <= 2^26, quotients are normal, and so are a - b q and all other results. A quotient of -0
// becomes +0, so a step of length 0 is +0 if LaneBlocks has found that it cannot underflow, and move need not change
// its sign.
//
// In fast files (LT_CUDA_FAST), quotients may be -0, which turns a parameter of -0 into +0. The error is at most 1 ulp
// for the reciprocal, 2 ulp for the quotient, which takes one more multiplication, and 1 ulp for the square root (PTX
// ISA: rcp.approx, sqrt.approx).

LT_FN float unchecked_divide(float a, float b) {
#ifndef __CUDA_ARCH__
  return a / b + 0.f;  // never -0, like the code below
#elif defined LT_CUDA_FAST
  return __fdividef(a, b);
#else
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
  r = __fmaf_rn(r, __fmaf_rn(-b, r, 1.f), r);
  float q = __fmul_rn(a, r);
  q = __fmaf_rn(r, __fmaf_rn(-b, q, a), q);
  return __fmaf_rn(r, __fmaf_rn(-b, q, a), q);
#endif
}

LT_FN float unchecked_sqrt(float x) {
#ifndef __CUDA_ARCH__
  return __builtin_sqrtf(x);
#elif defined LT_CUDA_FAST
  float g;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(g) : "f"(x));
  return g;
#else
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x > 0x1p-100f ? x : 0x1p-100f));  // gives 0 below if x is 0
  const float g = __fmul_rn(x, y), h = __fmul_rn(y, 0.5f);
  return __fmaf_rn(__fmaf_rn(-g, g, x), h, g);
#endif
}

// kHasZero says that a step may still be -0.
template <bool kHasZero>
struct Real {
  float x;
  LT_METHOD Real(float value) : x(value) {}
  Real() = default;

  LT_METHOD friend Real operator+(Real a, Real b) { return a.x + b.x; }
  LT_METHOD friend Real operator-(Real a, Real b) { return a.x - b.x; }
  LT_METHOD friend Real operator*(Real a, Real b) { return a.x * b.x; }
  LT_METHOD friend Real operator/(Real a, Real b) { return unchecked_divide(a.x, b.x); }
  LT_METHOD friend bool operator<(Real a, Real b) { return a.x < b.x; }
  LT_METHOD friend bool operator>(Real a, Real b) { return a.x > b.x; }
  LT_METHOD friend Real sqrt(Real a) { return unchecked_sqrt(a.x); }
  LT_METHOD friend Real abs(Real a) { return __builtin_fabsf(a.x); }
  LT_METHOD friend Real max(Real a, Real b) { return a.x > b.x ? a.x : b.x; }
  LT_METHOD friend Real select(bool m, Real a, Real b) { return m ? a.x : b.x; }
  LT_METHOD friend Real move(Real p, Real x) { return p.x - (kHasZero ? x.x + 0.f : x.x); }
};
