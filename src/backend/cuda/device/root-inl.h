// Computes roots of exact sums in double, like the host. Included in the namespace of a .cu file after the portable
// kernels.

// Rounds the sum like ExactSum::value().
LT_FN double root_of(const int64_t (&limbs)[kSumLimbs]) {
  u64 carried = 0;
  double sum = 0;
#pragma unroll
  for (int i = 0; i < kSumLimbs; ++i) {
    u64 limb = static_cast<u64>(limbs[i]) + carried;
    carried = limb >> 32;
    if (i + 1 < kSumLimbs) limb &= 0xffffffffu;
    const u64 unit = static_cast<u64>(1023 + kSumLowest + 32 * i) << 52;  // a power of two, as bits
    double scale;
    __builtin_memcpy(&scale, &unit, sizeof scale);
    sum = sum + static_cast<double>(limb) * scale;
  }
#ifdef __CUDA_ARCH__
  return __dsqrt_rn(sum);
#else
  return __builtin_sqrt(sum);
#endif
}
