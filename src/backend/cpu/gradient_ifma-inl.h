// Exact sums of squares in integers, for AVX-512 with IFMA. Magnitudes of a chunk become 52-bit integers; one
// instruction adds the lower halves of their squares, another the upper halves.

// Inline assembly, because Highway sets the target and compilers are not told about IFMA.
LT_FN __m512i add_square_low(__m512i sum, __m512i x) {
  __asm__("vpmadd52luq %1, %1, %0" : "+v"(sum) : "v"(x));
  return sum;
}
LT_FN __m512i add_square_high(__m512i sum, __m512i x) {
  __asm__("vpmadd52huq %1, %1, %0" : "+v"(sum) : "v"(x));
  return sum;
}

// Adds sums in units of 2^exponent, eight per vector. (In registers, because it takes as long as a chunk without
// read-ahead.)
template <class... Lanes>
HWY_INLINE void add_lanes(int exponent, ExactSum& total, Lanes... sums) {
  const __m512i lower = _mm512_set1_epi64(0xffffffff);
  __m512i low = _mm512_setzero_si512(), high = low;
  ((low = _mm512_add_epi64(low, _mm512_and_si512(sums, lower)),
    high = _mm512_add_epi64(high, _mm512_srli_epi64(sums, 32))),
   ...);
  total.add_count(static_cast<uint64_t>(_mm512_reduce_add_epi64(low)), exponent);
  total.add_count(static_cast<uint64_t>(_mm512_reduce_add_epi64(high)), exponent + 32);
}

template <class G>
class WholeSums {
 public:
  static constexpr int kBits = 52;

  // Magnitudes below 2^top are multiples of 2^(top - kBits).
  static Window window(int top) { return {top, power_bits(top - kBits + kStoredBits<G>), power_bits(top)}; }

  explicit WholeSums(int top) : top_(top), scale_(_mm512_set1_ps(static_cast<float>(kBits - top))) {}

  HWY_INLINE void add_squares(vf magnitude) {
    const __m512 whole = _mm512_scalef_ps(magnitude.v.raw, scale_);
    const __m512i lower = _mm512_cvttps_epi64(_mm512_castps512_ps256(whole));
    const __m512i upper = _mm512_cvttps_epi64(_mm512_extractf32x8_ps(whole, 1));
    lower_low_ = add_square_low(lower_low_, lower);
    lower_high_ = add_square_high(lower_high_, lower);
    upper_low_ = add_square_low(upper_low_, upper);
    upper_high_ = add_square_high(upper_high_, upper);
  }

  void add_to(ExactSum& total) const {
    const int quantum = 2 * (top_ - kBits);
    add_lanes(quantum, total, lower_low_, upper_low_);
    add_lanes(quantum + kBits, total, lower_high_, upper_high_);
  }

 private:
  int top_;
  __m512 scale_;
  __m512i lower_low_ = _mm512_setzero_si512(), lower_high_ = lower_low_, upper_low_ = lower_low_,
          upper_high_ = lower_low_;
};
