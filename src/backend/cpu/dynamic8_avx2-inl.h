// dynamic8 with AVX2. Decoding loads a vector per code and blends one entry of each, which takes fewer operations than
// loads of single entries, and no shuffles; the gather instruction is slower. It loads codes one by one, because
// extracting them from a word takes more operations. (A line per decade and two bits that correct its rounding take as
// long on Zen 5.) Encoding uses the lines of dynamic8_lines-inl.h, whose eight decades fit a permutation of one vector.
// Stochastic encoding takes the smaller of two lines: the decade's, and the line of the nearby joint.
// Without the gather instruction, a dynamic8 AdamW step in cache is 1.4 times as fast (Zen 4).
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

// The map, with room for vectors that begin up to 7 entries before a code's entry or end up to 7 after it.
struct Dynamic8Entries {
  static constexpr int kRoom = 7;
  float padded[kRoom + 256 + kRoom];
};
template <bool kSigned>
const Dynamic8Entries& dynamic8_entries() {
  static const Dynamic8Entries entries = [] {
    Dynamic8Entries t{};
    for (int i = 0; i < 256; ++i) t.padded[t.kRoom + i] = codec_tables<Dynamic8>().side[kSigned].value[i];
    return t;
  }();
  return entries;
}

template <bool kSigned>
struct CpuCodec<Dynamic8, kSigned> : GenericCodec<Dynamic8, kSigned> {
  using L = Dynamic8Lines;
  const L& lines = dynamic8_lines<kSigned>();
  const Dynamic8Pieces& pieces = dynamic8_pieces<kSigned>();
  const Dynamic8Entries& entries = dynamic8_entries<kSigned>();

  HWY_INLINE vf decode_vector(const u8* codes, float scale) const {
    // Each load puts the entry of code k into lane k.
    const float* const t = entries.padded + entries.kRoom;
    __m256 x = _mm256_loadu_ps(t + codes[0]);
    x = _mm256_blend_ps(x, _mm256_loadu_ps(t + codes[1] - 1), 1 << 1);
    x = _mm256_blend_ps(x, _mm256_loadu_ps(t + codes[2] - 2), 1 << 2);
    x = _mm256_blend_ps(x, _mm256_loadu_ps(t + codes[3] - 3), 1 << 3);
    x = _mm256_blend_ps(x, _mm256_loadu_ps(t + codes[4] - 4), 1 << 4);
    x = _mm256_blend_ps(x, _mm256_loadu_ps(t + codes[5] - 5), 1 << 5);
    x = _mm256_blend_ps(x, _mm256_loadu_ps(t + codes[6] - 6), 1 << 6);
    x = _mm256_blend_ps(x, _mm256_loadu_ps(t + codes[7] - 7), 1 << 7);
    return vf(vf::Vec{x}) * vf(scale);
  }
  HWY_INLINE void decode(const u8* codes, float scale, vf (&out)[kTileVectors]) const {
    for (int i = 0; i < kTileVectors; ++i) out[i] = decode_vector(codes + i * kLanes, scale);
  }

  HWY_INLINE void encode(const float* values, float inverse, const TileRounding& rounding, u32 index, u8* codes) const {
    if (rounding.stochastic) return encode_stochastic(values, inverse, rounding, index, codes);
    const __m256 joint = _mm256_load_ps(lines.joint);
    const __m256 slope = _mm256_load_ps(lines.slope), count = _mm256_load_ps(lines.count);
    __m256i least = _mm256_set1_epi32(-1);
    for (int half = 0; half < 2; ++half) {
      const float* const from = values + half * 8 * n;
      __m256 value[n], a[n], z[n];
      __m256i decade[n], rank[n];
      for (int i = 0; i < n; ++i) value[i] = _mm256_loadu_ps(from + 8 * i);
      for (int i = 0; i < n; ++i) a[i] = magnitude(_mm256_mul_ps(value[i], _mm256_set1_ps(inverse)));
      for (int i = 0; i < n; ++i) decade[i] = guess_of(a[i]);
      for (int i = 0; i < n; ++i) decade[i] = decade_of(a[i], decade[i], joint);
      for (int i = 0; i < n; ++i)
        z[i] = _mm256_fmadd_ps(a[i], _mm256_permutevar8x32_ps(slope, decade[i]), _mm256_set1_ps(L::kIntercept));
      for (int i = 0; i < n; ++i)
        z[i] = _mm256_fmadd_ps(_mm256_min_ps(z[i], _mm256_set1_ps(L::kLargestZ)),
                               _mm256_permutevar8x32_ps(count, decade[i]), _mm256_set1_ps(L::offset(kSigned)));
      for (int i = 0; i < n; ++i) rank[i] = _mm256_cvttps_epi32(z[i]);
      for (int i = 0; i < n; ++i) least = _mm256_min_epu16(least, rank[i]);  // of the fractions, in even words
      if constexpr (!kSigned)
        for (int i = 0; i < n; ++i) value[i] = _mm256_max_ps(value[i], _mm256_setzero_ps());
      store(rank, value, codes + half * 8 * n);
    }
    const __m256i near = _mm256_and_si256(least, _mm256_set1_epi32(L::kFraction));
    if (HWY_UNLIKELY(_mm256_movemask_epi8(_mm256_cmpeq_epi32(near, _mm256_setzero_si256())) != 0))
      encode_generic(values, inverse, rounding, index, codes);
  }

 private:
  // Vectors of which each operation runs at once, because one chain is longer than the processor's lookahead.
  static constexpr int n = 4;

  HWY_NOINLINE void encode_stochastic(const float* values, float inverse, const TileRounding& rounding, u32 index,
                                      u8* codes) const {
    const __m256 end = _mm256_load_ps(pieces.end);
    const __m256 slope = _mm256_load_ps(pieces.slope), intercept = _mm256_load_ps(pieces.intercept);
    const __m256 joint_slope = _mm256_load_ps(pieces.joint_slope);
    const __m256 joint_intercept = _mm256_load_ps(pieces.joint_intercept);
    vu random[2 * n];
    random_tile(index, rounding, random);
    for (int half = 0; half < 2; ++half) {
      const float* const from = values + half * 8 * n;
      __m256 value[n], a[n], least[n];
      __m256i guess[n], decade[n], rank[n];
      // If one operand is a NaN, the result of max is the second. Magnitudes above 1 get the code of 1, because ranks
      // saturate.
      for (int i = 0; i < n; ++i) {
        value[i] = _mm256_loadu_ps(from + 8 * i);
        if constexpr (kSigned) {
          value[i] = _mm256_mul_ps(value[i], _mm256_set1_ps(inverse));
          a[i] = _mm256_max_ps(_mm256_and_ps(value[i], _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff))),
                               _mm256_setzero_ps());
        } else {
          value[i] = _mm256_max_ps(value[i], _mm256_setzero_ps());
          a[i] = _mm256_max_ps(_mm256_mul_ps(value[i], _mm256_set1_ps(inverse)),
                               _mm256_set1_ps(this->tables.side[0].lowest));
        }
      }
      for (int i = 0; i < n; ++i) guess[i] = guess_of(a[i]);
      // A guess covers the upper part of its decade and the lower part of the next.
      for (int i = 0; i < n; ++i) least[i] = line(a[i], joint_slope, joint_intercept, guess[i]);
      for (int i = 0; i < n; ++i) decade[i] = decade_of(a[i], guess[i], end);
      for (int i = 0; i < n; ++i) least[i] = _mm256_min_ps(line(a[i], slope, intercept, decade[i]), least[i]);
      for (int i = 0; i < n; ++i) rank[i] = _mm256_add_epi32(_mm256_cvttps_epi32(least[i]), random[half * n + i].v.raw);
      store(rank, value, codes + half * 8 * n);
    }
  }

  HWY_INLINE static __m256 line(__m256 a, __m256 slopes, __m256 intercepts, __m256i of) {
    return _mm256_add_ps(_mm256_mul_ps(a, _mm256_permutevar8x32_ps(slopes, of)),
                         _mm256_permutevar8x32_ps(intercepts, of));
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

  // Stores ranks, in units of 2^-16, as codes. A negative value gives a code below that of zero, and a value of 0 gives
  // the code of zero.
  HWY_INLINE static void store(const __m256i (&rank)[n], const __m256 (&value)[n], u8* codes) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packing works within 128-bit lanes
    const auto of = [&](int i) {
      return _mm256_sign_epi32(_mm256_srli_epi32(rank[i], 16), _mm256_castps_si256(value[i]));
    };
    const auto words = [&](int i) {
      const __m256i both = _mm256_packs_epi32(of(i), of(i + 1));
      return kSigned ? _mm256_adds_epi16(both, _mm256_set1_epi16(Dynamic8::kSignedZero)) : both;
    };
    // Saturation turns -1, which has no entry, into 0.
    const __m256i packed = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(words(0), words(2)), order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), packed);
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
