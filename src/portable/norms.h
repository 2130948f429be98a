// Norms of a whole parameter, for rules that define
//   kNormsReadState                       whether terms() reads the state
//   terms(p, g, s, args, F (&out)[2])     two values of each element; the norms are the roots of the sums of their
//   squares
//   put_norms(args, h)                    writes the part of the arguments that depends on h.norm; of h it only reads
//                                         the members of kernels::DeviceNorms. args(h) ends with it: norms found on a
//                                         device are put into arguments that the host has made without them

template <class R, class = void>
inline constexpr bool kHasNorms = false;
template <class R>
inline constexpr bool kHasNorms<R, decltype(void(R::kNormsReadState))> = true;

// Sums over all parameters of an optimizer, for rules that define
//   kSumsRead                             the states that terms() reads, as bits
//   terms(p, g, s, args, F (&out)[2])     two values of each element, which neither read p nor are squared; the second
//   is
//                                         not negative. The sums of all of them are h.norm, and are added exactly.
template <class R, class = void>
inline constexpr bool kHasSums = false;
template <class R>
inline constexpr bool kHasSums<R, decltype(void(R::kSumsRead))> = true;

// A block's values are divided by a power of two near the largest magnitude, and their squares summed in the order of
// sum_lanes: squares of 2^127 do not overflow, and those of 2^-149 count. The block's sum is sum * unit^2. Sums of
// blocks are added exactly (core/exact_sum.h), so their order does not matter.
inline constexpr int kNormLanes = 32;

// largest: the largest magnitude in a block, as bits. Unit and its reciprocal are normal floats.
LT_FN u32 norm_exponent(u32 largest) {
  const u32 exponent = largest >> 23;
  return exponent < 1u ? 1u : exponent > 253u ? 253u : exponent;
}
LT_FN float norm_unit(u32 exponent) { return as_float(exponent << 23); }
LT_FN float norm_inverse(u32 exponent) { return as_float((254u - exponent) << 23); }

// True if ratios of norms are meaningful: without norms, or if one is 0 or not finite, ratios are 1.
template <class H>
LT_FN bool has_norms(const H& h) {
  constexpr double kLargest = 0x1.fffffffffffffp1023;
  return h.norm[0] > 0 && h.norm[1] > 0 && h.norm[0] <= kLargest && h.norm[1] <= kLargest;
}
// min(1, max_unorm |p| / |update|), bitsandbytes' clipping.
template <class H>
LT_FN double clip_ratio(const H& h) {
  if (!has_norms(h)) return 1;
  const double ratio = h.max_unorm * h.norm[0] / h.norm[1];
  return ratio < 1 ? ratio : 1;
}
// Converts to float; a ratio beyond the largest float would make 0 * inf.
LT_FN float finite_float(double x) { return x < 0x1.fffffep127 ? float(x) : 0x1.fffffep127f; }
