// Exact sums of squares in integers, for AVX-512 with IFMA: magnitudes of a chunk as whole numbers of 52 bits, of whose
// squares an instruction adds up the lower halves, and another one the upper halves.

// Compilers are not told of IFMA, as the target is Highway's.
LT_FN __m512i add_square_low(__m512i sum, __m512i x) {
  __asm__("vpmadd52luq %1, %1, %0" : "+v"(sum) : "v"(x));
  return sum;
}
LT_FN __m512i add_square_high(__m512i sum, __m512i x) {
  __asm__("vpmadd52huq %1, %1, %0" : "+v"(sum) : "v"(x));
  return sum;
}

template <class G>
class WholeSums {
 public:
  static constexpr int kBits = 52;

  // Magnitudes below 2^top are whole numbers of 2^(top - kBits).
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
    add_lanes(lower_low_, quantum, total), add_lanes(upper_low_, quantum, total);
    add_lanes(lower_high_, quantum + kBits, total), add_lanes(upper_high_, quantum + kBits, total);
  }

 private:
  static void add_lanes(__m512i sums, int exponent, ExactSum& total) {
    alignas(64) uint64_t lane[8];
    _mm512_store_si512(lane, sums);
    uint64_t low = 0, high = 0;
    for (const uint64_t x : lane) low += x & 0xffffffffu, high += x >> 32;
    total.add_count(low, exponent);
    total.add_count(high, exponent + 32);
  }

  int top_;
  __m512 scale_;
  __m512i lower_low_ = _mm512_setzero_si512(), lower_high_ = lower_low_, upper_low_ = lower_low_,
          upper_high_ = lower_low_;
};

LT_FN u32 float_bits(u16 word, const bf16*) { return static_cast<u32>(word) << 16; }
LT_FN u32 float_bits(u16 word, const f16*) {
  return static_cast<u32>(_mm_cvtsi128_si32(_mm_castps_si128(_mm_cvtph_ps(_mm_cvtsi32_si128(word)))));
}
LT_FN vf first_half(__m512i words, const bf16*) {
  return vf(vf::Vec{_mm512_castsi512_ps(_mm512_slli_epi32(words, 16))});
}
LT_FN vf other_half(__m512i words, const bf16*) {
  return vf(vf::Vec{_mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(-0x10000)))});
}
LT_FN vf first_half(__m512i words, const f16*) { return vf(vf::Vec{_mm512_cvtph_ps(_mm512_castsi512_si256(words))}); }
LT_FN vf other_half(__m512i words, const f16*) {
  return vf(vf::Vec{_mm512_cvtph_ps(_mm512_extracti64x4_epi64(words, 1))});
}

// largest, smallest: of words of 16 bits, whose magnitudes are ordered as their bits are. (Not inlined: compilers would
// keep both in memory, also while elements are added.)
template <class G>
HWY_NOINLINE Magnitudes magnitudes_of(__m512i largest, __m512i smallest, const G* g) {
  alignas(64) u16 most[32], least[32];
  _mm512_store_si512(most, largest);
  _mm512_store_si512(least, smallest);
  for (int k = 1; k < 32; ++k) {
    most[0] = most[0] > most[k] ? most[0] : most[k];
    least[0] = least[0] < least[k] ? least[0] : least[k];
  }
  Magnitudes found{float_bits(most[0], g), 0xffffffffu};
  if (least[0] != 0xffff) found.smallest = float_bits(static_cast<u16>(least[0] + 1), g) - 1;
  return found;
}

// Adds a chunk of 16-bit elements, or nothing, as try_chunk() does.
template <class G>
HWY_INLINE Magnitudes try_words(const G* g, int64_t n, const Window& window, ExactSum& total) {
  constexpr int kWords = 32;
  WholeSums<G> sums(window.top), others(window.top);
  __m512i largest = _mm512_setzero_si512(), smallest = _mm512_set1_epi16(-1);
  alignas(64) G padded[kWords] = {};
  const int64_t whole = n / kWords * kWords;
  __builtin_memcpy(padded, g + whole, static_cast<size_t>(n - whole) * sizeof(G));
  for (int64_t i = 0; i < n; i += kWords) {
    prefetch(g + i);
    const G* const at = i < whole ? g + i : padded;
    const __m512i words = _mm512_and_si512(_mm512_loadu_si512(at), _mm512_set1_epi16(0x7fff));
    largest = _mm512_max_epu16(largest, words);
    smallest = _mm512_min_epu16(smallest, _mm512_sub_epi16(words, _mm512_set1_epi16(1)));
    sums.add_squares(first_half(words, g));
    others.add_squares(other_half(words, g));
  }
  const Magnitudes found = magnitudes_of(largest, smallest, g);
  if (found.largest < window.high && found.smallest >= window.low - 1) sums.add_to(total), others.add_to(total);
  return found;
}
