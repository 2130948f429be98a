// Exact sums of squares of 16-bit elements, for AVX-512 with IFMA. Their mantissas are short, so squares of 26-bit
// integers fit one register of sums, at half the cost of 52 bits. Few pieces of a chunk have elements too small for 26
// bits; these pieces are added in 52 bits.

LT_FN u32 float_bits(u16 word, const bf16*) { return static_cast<u32>(word) << 16; }
LT_FN u32 float_bits(u16 word, const f16*) {
  return static_cast<u32>(_mm_cvtsi128_si32(_mm_castps_si128(_mm_cvtph_ps(_mm_cvtsi32_si128(word)))));
}
LT_FN __m512 first_half(__m512i words, const bf16*) { return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16)); }
LT_FN __m512 other_half(__m512i words, const bf16*) {
  return _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(-0x10000)));
}
LT_FN __m512 first_half(__m512i words, const f16*) { return _mm512_cvtph_ps(_mm512_castsi512_si256(words)); }
LT_FN __m512 other_half(__m512i words, const f16*) { return _mm512_cvtph_ps(_mm512_extracti64x4_epi64(words, 1)); }

// The largest and smallest magnitudes, which sort like their bits. smallest: minus 1, so that zeros do not count.
struct WordExtremes {
  __m512i largest, smallest;

  HWY_INLINE WordExtremes() : largest(_mm512_setzero_si512()), smallest(_mm512_set1_epi16(-1)) {}
  HWY_INLINE explicit WordExtremes(__m512i words)
      : largest(words), smallest(_mm512_sub_epi16(words, _mm512_set1_epi16(1))) {}

  HWY_INLINE void merge(const WordExtremes& other) {
    largest = _mm512_max_epu16(largest, other.largest);
    smallest = _mm512_min_epu16(smallest, other.smallest);
  }
};

LT_FN u16 smallest_of(__m512i words) {
  const __m256i half = _mm256_min_epu16(_mm512_castsi512_si256(words), _mm512_extracti64x4_epi64(words, 1));
  const __m128i quarter = _mm_min_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  return static_cast<u16>(_mm_cvtsi128_si32(_mm_minpos_epu16(quarter)));
}

template <class G>
LT_FN Magnitudes magnitudes_of(const WordExtremes& seen, const G* g) {
  const auto most = static_cast<u16>(~smallest_of(_mm512_xor_si512(seen.largest, _mm512_set1_epi16(-1))));
  const u16 least = smallest_of(seen.smallest);
  Magnitudes found{float_bits(most, g), 0xffffffffu};
  if (least != 0xffff) found.smallest = float_bits(static_cast<u16>(least + 1), g) - 1;
  return found;
}

// Calls add(magnitudes of 32 elements) for all n elements, padded with zeros.
template <class G, class Fn>
HWY_INLINE WordExtremes for_words(const G* g, int64_t n, Fn&& add) {
  constexpr int kWords = 32;
  WordExtremes seen;
  const auto take = [&](const G* at) {
    const __m512i words = _mm512_and_si512(_mm512_loadu_si512(at), _mm512_set1_epi16(0x7fff));
    seen.merge(WordExtremes(words));
    add(words);
  };
  int64_t i = 0;
  for (; i + kWords <= n; i += kWords) {
    prefetch(g + i);
    take(g + i);
  }
  if (i < n) {
    alignas(64) G padded[kWords] = {};
    __builtin_memcpy(padded, g + i, static_cast<size_t>(n - i) * sizeof(G));
    take(padded);
  }
  return seen;
}

template <class G>
class ShortSums {
 public:
  static constexpr int kBits = 26;

  // Magnitudes below 2^top are multiples of 2^(top - kBits), unless they are too small. With `top` between these
  // limits, adding the exponent of 2^(kBits - top) to a zero's gives a number below 1.
  static bool takes(int top) { return top <= kBits && top > kBits - 127; }

  explicit ShortSums(int top) : top_(top) {
    if constexpr (kIsBf16) {
      scale_ = _mm512_set1_epi16(static_cast<short>((kBits - top) * (1 << kStoredBits<bf16>)));
    } else {
      scale_ = _mm512_set1_epi32((kBits - top) * (1 << kStoredBits<float>));
    }
  }

  // Returns true if all elements were multiples.
  HWY_INLINE bool holds(const WordExtremes& seen) const {
    const __m512i least = _mm512_set1_epi16(static_cast<short>(smallest_word(top_ - kBits) - 1));
    return _mm512_cmplt_epu16_mask(seen.smallest, least) == 0;
  }

  HWY_INLINE void add_squares(__m512i words, const G* g) {
    // Adding to exponents multiplies by a power of two. A zero becomes less than 1.
    if constexpr (kIsBf16) words = _mm512_add_epi16(words, scale_);
    const __m512i first = whole(first_half(words, g)), other = whole(other_half(words, g));
    first_even_ = _mm512_add_epi64(first_even_, _mm512_mul_epu32(first, first));
    first_odd_ = add_square_low(first_odd_, _mm512_srli_epi64(first, 32));
    other_even_ = _mm512_add_epi64(other_even_, _mm512_mul_epu32(other, other));
    other_odd_ = add_square_low(other_odd_, _mm512_srli_epi64(other, 32));
  }

  void add_to(ExactSum& total) const {
    add_lanes(2 * (top_ - kBits), total, first_even_, first_odd_, other_even_, other_odd_);
  }

 private:
  static constexpr bool kIsBf16 = std::is_same_v<G, bf16>;

  HWY_INLINE __m512i whole(__m512 x) const {
    if constexpr (!kIsBf16) x = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), scale_));
    return _mm512_cvttps_epi32(x);
  }

  // Returns the bits of the smallest element from which on all elements are multiples of 2^exponent.
  static u16 smallest_word(int exponent) {
    if constexpr (kIsBf16) return static_cast<u16>(power_bits(exponent + kStoredBits<bf16>) >> 16);
    if (exponent <= -24) return 1;  // every value is a multiple
    return static_cast<u16>((exponent + kStoredBits<f16> + 15) << kStoredBits<f16>);
  }

  int top_;
  __m512i scale_;
  __m512i first_even_ = _mm512_setzero_si512(), first_odd_ = first_even_, other_even_ = first_even_,
          other_odd_ = first_even_;
};

// Not inlined, because it is rare and has its own registers.
template <class G>
HWY_NOINLINE WordExtremes add_whole(const G* g, int64_t n, WholeSums<G>& first, WholeSums<G>& other) {
  WholeSums<G> sums = first, others = other;
  const WordExtremes seen = for_words(g, n, [&](__m512i words) {
    sums.add_squares(vf(vf::Vec{first_half(words, g)}));
    others.add_squares(vf(vf::Vec{other_half(words, g)}));
  });
  first = sums, other = others;
  return seen;
}

// Adds a chunk of 16-bit elements, or nothing, like try_chunk().
template <class G>
HWY_INLINE Magnitudes try_words(const G* g, int64_t n, const Window& window, ExactSum& total) {
  constexpr int64_t kPiece = 1024;
  ShortSums<G> sums(window.top);
  WholeSums<G> whole(window.top), other_whole(window.top);
  WordExtremes seen;
  const bool is_taken = ShortSums<G>::takes(window.top);
  bool fits = is_taken;  // a piece likely fits if the previous one did
  bool is_any_whole = false;
  for (int64_t at = 0; at < n; at += kPiece) {
    const int64_t count = n - at < kPiece ? n - at : kPiece;
    WordExtremes here;
    bool is_added = false;
    if (fits) {
      ShortSums<G> longer = sums;
      here = for_words(g + at, count, [&](__m512i words) { longer.add_squares(words, g); });
      is_added = sums.holds(here);
      if (is_added) sums = longer;
    }
    if (!is_added) {
      here = add_whole(g + at, count, whole, other_whole);
      is_any_whole = true;
    }
    fits = is_taken && sums.holds(here);
    seen.merge(here);
  }
  const Magnitudes found = magnitudes_of(seen, g);
  if (found.largest < window.high && found.smallest >= window.low - 1) {
    sums.add_to(total);
    if (is_any_whole) whole.add_to(total), other_whole.add_to(total);
  }
  return found;
}
