// dynamic8 with AVX2. Decoding uses eight scalar loads instead of the gather instruction, which is slower, and loads
// codes one by one, which takes fewer operations than extracting them from a word. (A line per decade and two bits that
// correct its rounding take as long on Zen 5.) Encoding uses the lines of dynamic8_lines-inl.h, whose eight decades fit
// a permutation of one vector. Stochastic encoding takes the smaller of two lines: the decade's, and the line of the
// nearby joint.
// A dynamic8 AdamW step in cache, rounding to nearest on Zen 4: 0.47 Gelt/s with gathers, 0.64 without; stochastic
// rounding reaches 0.9 of that.
#if HWY_TARGET == HWY_AVX2

// Lines of stochastic rounding for each decade (7: the line up to the entry 1), and for each joint to the next decade.
struct Dynamic8Pieces {
  alignas(32) float end[8];  // values above it belong to the next decade
  alignas(32) float slope[8], intercept[8], joint_slope[8], joint_intercept[8];
};

template <bool kSigned>
const Dynamic8Pieces& dynamic8_pieces() {
  static const Dynamic8Pieces pieces = [] {
    const float* entry = codec_tables<Dynamic8>().side[kSigned].value + (kSigned ? Dynamic8::kSignedZero : 0u);
    Dynamic8Pieces t;
    for (int d = 0; d < 8; ++d) {
      const int low = Dynamic8::first_rank(kSigned, d), high = d < 7 ? Dynamic8::first_rank(kSigned, d + 1) - 1 : low;
      const Dynamic8::Line own = d == 7        ? Dynamic8::last_line(entry, low)
                                 : low == high ? Dynamic8::line(entry, low - 1, low)
                                               : Dynamic8::line(entry, low, high);
      // The line up to 1 is the steeper of the two, so the smaller must not be taken there.
      const Dynamic8::Line joint = d < 6 ? Dynamic8::line(entry, high, high + 1) : Dynamic8::Line{0, __builtin_inff()};
      t.slope[d] = own.slope, t.intercept[d] = own.intercept;
      t.joint_slope[d] = joint.slope, t.joint_intercept[d] = joint.intercept;
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
      const u8* const c = codes + i * kLanes;
      const __m128 low = _mm_setr_ps(t[c[0]], t[c[1]], t[c[2]], t[c[3]]);
      const __m128 high = _mm_setr_ps(t[c[4]], t[c[5]], t[c[6]], t[c[7]]);
      out[i] = vf(vf::Vec{_mm256_set_m128(high, low)}) * vf(scale);
    }
  }

  HWY_INLINE void encode(const float* values, float inverse, const TileRounding& rounding, u32 index, u8* codes) const {
    if (rounding.stochastic) return encode_stochastic(values, inverse, rounding, index, codes);
    const __m256 joint = _mm256_load_ps(lines.joint);
    const __m256 slope = _mm256_load_ps(lines.slope), count = _mm256_load_ps(lines.count);
    __m256i word[8], sign[8], least = _mm256_set1_epi32(-1);
    for (int i = 0; i < 8; ++i) {
      const __m256 value = _mm256_loadu_ps(values + 8 * i);
      const __m256 a = magnitude(_mm256_mul_ps(value, _mm256_set1_ps(inverse)));
      const __m256i decade = decade_of(a, guess_of(a), joint);
      const __m256 z =
          _mm256_min_ps(_mm256_fmadd_ps(a, _mm256_permutevar8x32_ps(slope, decade), _mm256_set1_ps(L::kIntercept)),
                        _mm256_set1_ps(L::kLargestZ));
      const __m256i rank = _mm256_cvttps_epi32(
          _mm256_fmadd_ps(z, _mm256_permutevar8x32_ps(count, decade), _mm256_set1_ps(L::offset(kSigned))));
      least = _mm256_min_epu32(least, _mm256_and_si256(rank, _mm256_set1_epi32(L::kFraction)));
      word[i] = _mm256_srli_epi32(rank, 16);
      sign[i] = _mm256_castps_si256(kSigned ? value : _mm256_max_ps(value, _mm256_setzero_ps()));
    }
    if (HWY_UNLIKELY(_mm256_movemask_epi8(_mm256_cmpeq_epi32(least, _mm256_setzero_si256())) != 0))
      return encode_generic(values, inverse, rounding, index, codes);
    store(word, sign, codes);
  }

 private:
  HWY_NOINLINE void encode_stochastic(const float* values, float inverse, const TileRounding& rounding, u32 index,
                                      u8* codes) const {
    const __m256 end = _mm256_load_ps(pieces.end);
    const __m256 slope = _mm256_load_ps(pieces.slope), intercept = _mm256_load_ps(pieces.intercept);
    const __m256 joint_slope = _mm256_load_ps(pieces.joint_slope);
    const __m256 joint_intercept = _mm256_load_ps(pieces.joint_intercept);
    vu random[8];
    random_tile(index, rounding, random);
    __m256i word[8], sign[8];
    for (int i = 0; i < 8; ++i) {
      __m256 value = _mm256_loadu_ps(values + 8 * i), a;
      // If one operand is a NaN, the result is the second. Magnitudes above 1 get the code of 1, because ranks
      // saturate.
      if constexpr (kSigned) {
        value = _mm256_min_ps(_mm256_mul_ps(value, _mm256_set1_ps(inverse)), _mm256_set1_ps(1.f));
        a = _mm256_and_ps(value, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)));
      } else {
        value = _mm256_max_ps(value, _mm256_setzero_ps());
        a = _mm256_max_ps(_mm256_mul_ps(value, _mm256_set1_ps(inverse)), _mm256_set1_ps(this->tables.side[0].lowest));
      }
      sign[i] = _mm256_castps_si256(value);
      const __m256i guess = guess_of(a), decade = decade_of(a, guess, end);
      const auto line = [a](__m256 slopes, __m256 intercepts, __m256i of) {
        return _mm256_add_ps(_mm256_mul_ps(a, _mm256_permutevar8x32_ps(slopes, of)),
                             _mm256_permutevar8x32_ps(intercepts, of));
      };
      // A guess covers the upper part of its decade and the lower part of the next.
      const __m256 least = _mm256_min_ps(line(slope, intercept, decade), line(joint_slope, joint_intercept, guess));
      word[i] = _mm256_srli_epi32(_mm256_add_epi32(_mm256_cvttps_epi32(least), random[i].v.raw), 16);
    }
    store(word, sign, codes);
  }

  // Guesses the decade of magnitudes up to 1. A float's upper half is roughly linear in its logarithm, so the guess is
  // right or one decade too low.
  HWY_INLINE static __m256i guess_of(__m256 a) {
    const __m256i key = _mm256_srli_epi32(_mm256_castps_si256(a), 16);
    return _mm256_mulhi_epu16(_mm256_subs_epu16(key, _mm256_set1_epi32(kKeyOfDecade0)),
                              _mm256_set1_epi32(kDecadesPerKey));
  }
  HWY_INLINE static __m256i decade_of(__m256 a, __m256i guess, __m256 ends) {
    const __m256 above = _mm256_cmp_ps(a, _mm256_permutevar8x32_ps(ends, guess), _CMP_GT_OQ);
    return _mm256_sub_epi32(guess, _mm256_castps_si256(above));
  }

  // Stores ranks as codes. A negative sign gives a code below that of zero, and a value of 0 gives the code of zero.
  HWY_INLINE static void store(const __m256i (&rank)[8], const __m256i (&sign)[8], u8* codes) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packing works within 128-bit lanes
    const auto words = [&](int i) {
      const __m256i signs = _mm256_packs_epi32(sign[i], sign[i + 1]);  // saturation keeps the sign
      const __m256i of = _mm256_sign_epi16(_mm256_packs_epi32(rank[i], rank[i + 1]), signs);
      return kSigned ? _mm256_adds_epi16(of, _mm256_set1_epi16(Dynamic8::kSignedZero)) : of;
    };
    for (int i = 0; i < 8; i += 4) {
      // Saturation turns -1, which has no entry, into 0.
      const __m256i packed = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(words(i), words(i + 2)), order);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + 8 * i), packed);
    }
  }

  // (upper half of a float - kKeyOfDecade0) * kDecadesPerKey >> 16 steps up at 3.5e-6 and once per decade from there.
  // Decade i starts between 1.18 and 1.9 times 10^(i-6), so a step is never late, nor early by a decade.
  static constexpr int kKeyOfDecade0 = 0x34cb, kDecadesPerKey = 154;

  // Returns |x|, at least the lowest. A midpoint belongs to the lower index, so negative values count as the next
  // larger float.
  HWY_INLINE static __m256 magnitude(__m256 x) {
    if constexpr (kSigned) {
      const __m256i u = _mm256_castps_si256(x);
      x = _mm256_castsi256_ps(
          _mm256_add_epi32(_mm256_and_si256(u, _mm256_set1_epi32(0x7fffffff)), _mm256_srli_epi32(u, 31)));
    }
    return _mm256_max_ps(x, _mm256_set1_ps(L::lowest(kSigned)));  // a NaN gives the second operand
  }

  // Encodes the tile with the generic code, which decides near boundaries. Not inlined, because it is rare.
  HWY_NOINLINE void encode_generic(const float* values, float inverse, const TileRounding& rounding, u32 index,
                                   u8* codes) const {
    GenericCodec<Dynamic8, kSigned>::encode(values, inverse, rounding, index, codes);
  }
};

#endif
