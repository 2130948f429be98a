// dynamic8 with AVX2. Decoding: eight scalar loads instead of the gather instruction, which costs more. Encoding: the
// lines of dynamic8_lines-inl.h, whose eight decades fit a permutation of one vector.
// Stochastic encoding takes the least of a decade's line and of those of the two joints at its ends.
// A dynamic8 AdamW step in cache: 0.47 Gelt/s with gathers, 0.55 with scalar loads both ways, 0.64 like this (Zen 4).
#if HWY_TARGET == HWY_AVX2

// The lines of stochastic rounding, by decade; 7 is the line up to the entry 1.
struct Dynamic8Pieces {
  alignas(32) float end[8];  // values above it are of the next decade
  alignas(32) float slope[3][8], intercept[3][8];
};

template <bool kSigned>
const Dynamic8Pieces& dynamic8_pieces() {
  static const Dynamic8Pieces pieces = [] {
    const float* entry = codec_tables<Dynamic8>().side[kSigned].value + (kSigned ? Dynamic8::kSignedZero : 0u);
    Dynamic8Pieces t;
    for (int d = 0; d < 8; ++d) {
      const int low = Dynamic8::first_rank(kSigned, d), high = d < 7 ? Dynamic8::first_rank(kSigned, d + 1) - 1 : low;
      const Dynamic8::Line before = d < 7 ? Dynamic8::line(entry, low - 1, low) : Dynamic8::last_line(entry, low);
      const Dynamic8::Line own = low < high ? Dynamic8::line(entry, low, high) : before;
      const Dynamic8::Line lines[3] = {before, own, d < 6 ? Dynamic8::line(entry, high, high + 1) : own};
      for (int k = 0; k < 3; ++k) t.slope[k][d] = lines[k].slope, t.intercept[k][d] = lines[k].intercept;
      t.end[d] = d < 7 ? Dynamic8::decade_end(entry, kSigned, d) : __builtin_inff();
    }
    return t;
  }();
  return pieces;
}

template <bool kSigned>
struct CpuCodec<Dynamic8, kSigned> : GenericCodec<Dynamic8, kSigned> {
  using L = Dynamic8Lines;
  const L& lines = dynamic8_lines<kSigned>();
  const Dynamic8Pieces& pieces = dynamic8_pieces<kSigned>();

  HWY_INLINE void decode(const u8* codes, float scale, vf (&out)[kTileVectors]) const {
    const float* t = this->tables.side[kSigned].value;
    for (int i = 0; i < kTileVectors; ++i) {
      u64 c;
      __builtin_memcpy(&c, codes + i * kLanes, 8);
      const __m128 low = _mm_setr_ps(t[c & 255], t[(c >> 8) & 255], t[(c >> 16) & 255], t[(c >> 24) & 255]);
      const __m128 high = _mm_setr_ps(t[(c >> 32) & 255], t[(c >> 40) & 255], t[(c >> 48) & 255], t[c >> 56]);
      out[i] = vf(vf::Vec{_mm256_set_m128(high, low)}) * vf(scale);
    }
  }

  HWY_INLINE void encode(const float* values, float inverse, const TileRounding& rounding, u32 index, u8* codes) const {
    if (rounding.stochastic) return encode_stochastic(values, inverse, rounding, index, codes);
    const __m256 joint = _mm256_load_ps(lines.joint);
    const __m256 slope = _mm256_load_ps(lines.slope), count = _mm256_load_ps(lines.count);
    __m256i word[8], least = _mm256_set1_epi32(-1);
    for (int i = 0; i < 8; ++i) {
      const __m256 value = _mm256_loadu_ps(values + 8 * i);
      const __m256 a = magnitude(_mm256_mul_ps(value, _mm256_set1_ps(inverse)));
      const __m256i decade = decade_of(a, joint);
      const __m256 z =
          _mm256_min_ps(_mm256_fmadd_ps(a, _mm256_permutevar8x32_ps(slope, decade), _mm256_set1_ps(L::kIntercept)),
                        _mm256_set1_ps(L::kLargestZ));
      const __m256i rank = _mm256_cvttps_epi32(
          _mm256_fmadd_ps(z, _mm256_permutevar8x32_ps(count, decade), _mm256_set1_ps(L::offset(kSigned))));
      least = _mm256_min_epu32(least, _mm256_and_si256(rank, _mm256_set1_epi32(L::kFraction)));
      word[i] = _mm256_srli_epi32(rank, 16);
      if constexpr (kSigned) {
        word[i] = _mm256_sign_epi32(word[i], _mm256_castps_si256(value));
      } else {  // an exact zero alone is 0
        const __m256 positive = _mm256_cmp_ps(value, _mm256_setzero_ps(), _CMP_GT_OQ);
        word[i] = _mm256_and_si256(word[i], _mm256_castps_si256(positive));
      }
    }
    if (HWY_UNLIKELY(_mm256_movemask_epi8(_mm256_cmpeq_epi32(least, _mm256_setzero_si256())) != 0))
      return encode_generic(values, inverse, rounding, index, codes);
    store(word, codes);
  }

 private:
  HWY_NOINLINE void encode_stochastic(const float* values, float inverse, const TileRounding& rounding, u32 index,
                                      u8* codes) const {
    const __m256 end = _mm256_load_ps(pieces.end), one = _mm256_set1_ps(1.f), zero = _mm256_setzero_ps();
    __m256 slope[3], intercept[3];
    for (int k = 0; k < 3; ++k)
      slope[k] = _mm256_load_ps(pieces.slope[k]), intercept[k] = _mm256_load_ps(pieces.intercept[k]);
    vu random[8];
    random_tile(index, rounding, random);
    __m256i word[8];
    for (int i = 0; i < 8; ++i) {
      const __m256 value = _mm256_loadu_ps(values + 8 * i);
      const __m256 x = _mm256_mul_ps(value, _mm256_set1_ps(inverse));
      __m256 a = _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)));
      if constexpr (!kSigned) a = _mm256_max_ps(a, _mm256_set1_ps(this->tables.side[0].lowest));
      a = _mm256_min_ps(a, one);  // the second operand where a is a NaN
      const __m256i decade = decade_of(a, end);
      const auto line = [&](int k) {
        return _mm256_add_ps(_mm256_mul_ps(a, _mm256_permutevar8x32_ps(slope[k], decade)),
                             _mm256_permutevar8x32_ps(intercept[k], decade));
      };
      const __m256 least = _mm256_min_ps(_mm256_min_ps(line(0), line(1)), line(2));
      word[i] = _mm256_srli_epi32(_mm256_add_epi32(_mm256_cvttps_epi32(least), random[i].v.raw), 16);
      if constexpr (kSigned) {
        const __m256i negative = _mm256_castps_si256(_mm256_cmp_ps(x, zero, _CMP_LT_OQ));
        word[i] = _mm256_sub_epi32(_mm256_xor_si256(word[i], negative), negative);
      } else {
        word[i] = _mm256_and_si256(word[i], _mm256_castps_si256(_mm256_cmp_ps(value, zero, _CMP_GT_OQ)));
      }
    }
    store(word, codes);
  }

  // Codes of magnitudes up to 1. A float's upper half is roughly linear in its logarithm: the first guess is the right
  // decade or one too low.
  HWY_INLINE static __m256i decade_of(__m256 a, __m256 ends) {
    const __m256i key = _mm256_srli_epi32(_mm256_castps_si256(a), 16);
    const __m256i guess =
        _mm256_mulhi_epu16(_mm256_subs_epu16(key, _mm256_set1_epi32(kKeyOfDecade0)), _mm256_set1_epi32(kDecadesPerKey));
    const __m256 above = _mm256_cmp_ps(a, _mm256_permutevar8x32_ps(ends, guess), _CMP_GT_OQ);
    return _mm256_sub_epi32(guess, _mm256_castps_si256(above));
  }

  // Ranks, negative for negative values, as codes.
  HWY_INLINE static void store(const __m256i (&word)[8], u8* codes) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packing works within 128-bit lanes
    const __m256i middle = _mm256_set1_epi16(kSigned ? Dynamic8::kSignedZero : 0);
    for (int half = 0; half < 2; ++half) {
      const __m256i* w = word + 4 * half;
      const __m256i low = _mm256_add_epi16(_mm256_packs_epi32(w[0], w[1]), middle);
      const __m256i high = _mm256_add_epi16(_mm256_packs_epi32(w[2], w[3]), middle);
      // Saturation turns -1, where there is no entry, into 0.
      const __m256i packed = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + 32 * half), packed);
    }
  }

  // (upper half of a float - kKeyOfDecade0) * kDecadesPerKey >> 16: steps up at 3.5e-6 and every decade from there.
  // Decade i starts between 1.18 and 1.9 times 10^(i-6), so a step is never early by a decade or late.
  static constexpr int kKeyOfDecade0 = 0x34cb, kDecadesPerKey = 154;

  // |x|, at least the lowest; negative values count as the next larger float: a midpoint belongs to the lower index.
  HWY_INLINE static __m256 magnitude(__m256 x) {
    if constexpr (kSigned) {
      const __m256i u = _mm256_castps_si256(x);
      x = _mm256_castsi256_ps(
          _mm256_add_epi32(_mm256_and_si256(u, _mm256_set1_epi32(0x7fffffff)), _mm256_srli_epi32(u, 31)));
    }
    return _mm256_max_ps(x, _mm256_set1_ps(L::lowest(kSigned)));  // the second operand where x is a NaN
  }

  // The same tile by the generic code: the arbiter near boundaries. Out of line: it is rare.
  HWY_NOINLINE void encode_generic(const float* values, float inverse, const TileRounding& rounding, u32 index,
                                   u8* codes) const {
    GenericCodec<Dynamic8, kSigned>::encode(values, inverse, rounding, index, codes);
  }
};

#endif
