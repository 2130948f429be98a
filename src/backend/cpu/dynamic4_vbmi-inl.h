// dynamic4 with AVX-512 VBMI. Decoding: one register holds all entries times the scale. Encoding: the portable
// arithmetic with its tables in registers, four vectors at a time; codes are packed first to bytes, then two per byte.
#if HWY_TARGET == HWY_AVX3_DL

template <bool kSigned>
struct CpuCodec<Dynamic4, kSigned> : GenericCodec<Dynamic4, kSigned> {
  const Dynamic4Table& t = this->tables.side[kSigned];

  HWY_INLINE void decode(const u4* codes, float scale, vf (&out)[kTileVectors]) const {
    const __m512i packed = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
    const __m512 entries = _mm512_mul_ps(_mm512_load_ps(t.value), _mm512_set1_ps(scale));
    // Lane k of vector i has its code in bits 4 (k % 8) of double word 2 i + k / 8; permutations use only 4 bits.
    const __m512i shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    const __m512i first = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    for (int i = 0; i < kTileVectors; ++i) {
      const __m512i words = _mm512_permutexvar_epi32(_mm512_add_epi32(first, _mm512_set1_epi32(2 * i)), packed);
      out[i] = vf(vf::Vec{_mm512_permutexvar_ps(_mm512_srlv_epi32(words, shifts), entries)});
    }
  }

  HWY_INLINE void encode(const float* values, float inverse, const TileRounding& rounding, u32 index, u4* codes) const {
    if (HWY_UNLIKELY(kSigned ? rounding.stochastic && index % 4 : !rounding.stochastic || index % 4))
      return encode_generic(values, inverse, rounding, index, codes);
    constexpr int n = kTileVectors;
    __m512 value[n], x[n];
    for (int i = 0; i < n; ++i) value[i] = _mm512_loadu_ps(values + 16 * i);
    for (int i = 0; i < n; ++i) x[i] = _mm512_mul_ps(value[i], _mm512_set1_ps(inverse));
    const __m512i rank = rounding.stochastic ? between(x, RandomShorts(index, rounding)) : nearest(x);
    if constexpr (!kSigned) return store(rank, codes);
    const __m512i raw[n] = {_mm512_castps_si512(value[0]), _mm512_castps_si512(value[1]), _mm512_castps_si512(value[2]),
                            _mm512_castps_si512(value[3])};
    const __mmask64 negative = _mm512_movepi8_mask(pack_bytes<3>(raw));
    const __m512i middle = _mm512_set1_epi8(Dynamic4::kSignedZero);
    // The map has no entry at -1.
    store(_mm512_mask_sub_epi8(_mm512_add_epi8(middle, rank), negative, middle, _mm512_min_epu8(rank, middle)), codes);
  }

 private:
  // Returns codes or, if signed, the ranks of magnitudes.
  HWY_INLINE __m512i nearest(__m512 (&x)[kTileVectors]) const {
    constexpr int n = kTileVectors;
    __m512i word[n];
    // A midpoint belongs to the lower index, which for negative values is the larger magnitude.
    for (int i = 0; i < n; ++i)
      word[i] =
          _mm512_add_epi32(_mm512_castps_si512(_mm512_abs_ps(x[i])), _mm512_srli_epi32(_mm512_castps_si512(x[i]), 31));
    u64 above = 0;
    for (int i = 0; i < n; ++i) {
      const __m512 magnitude = _mm512_castsi512_ps(word[i]);
      above |= static_cast<u64>(_mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(t.least), _CMP_GT_OQ)) << (16 * i);
      x[i] = above_lowest(below_one(magnitude));
    }
    rank_in(t.nearest, x, word);
    return _mm512_maskz_mov_epi8(above, pack_bytes<0>(word));
  }

  // Returns ranks by the lines between entries.
  HWY_INLINE __m512i between(__m512 (&x)[kTileVectors], const RandomShorts& random) const {
    constexpr int n = kTileVectors;
    __m512 inside[n];
    __m512i word[n];
    for (int i = 0; i < n; ++i) x[i] = below_one(kSigned ? max_abs(vf(0.f), vf(vf::Vec{x[i]})).v.raw : x[i]);
    for (int i = 0; i < n; ++i) inside[i] = above_lowest(x[i]);
    rank_in(t.below, inside, word);
    const __m512 slope = _mm512_load_ps(t.slope), intercept = _mm512_load_ps(t.intercept);
    for (int i = 0; i < n; ++i) x[i] = _mm512_mul_ps(kSigned ? x[i] : inside[i], _mm512_permutexvar_ps(word[i], slope));
    for (int i = 0; i < n; ++i) x[i] = _mm512_add_ps(x[i], _mm512_permutexvar_ps(word[i], intercept));
    for (int i = 0; i < n; ++i) word[i] = _mm512_cvttps_epi32(x[i]);
    const __m512i packed = pack_bytes<2>(word);
    return _mm512_mask_sub_epi8(packed, random.carries(word), packed, _mm512_set1_epi8(-1));
  }

  HWY_INLINE static __m512 below_one(__m512 x) { return _mm512_min_ps(x, _mm512_set1_ps(Dynamic4Table::kBelowOne)); }
  HWY_INLINE static __m512 above_lowest(__m512 x) { return _mm512_max_ps(x, _mm512_set1_ps(Dynamic4Table::kLowest)); }
  HWY_INLINE static void rank_in(const u32 (&buckets)[32], const __m512 (&x)[kTileVectors],
                                 __m512i (&rank)[kTileVectors]) {
    constexpr int n = kTileVectors, kBits = Dynamic4Table::kBits;
    const __m512i low = _mm512_load_si512(buckets), high = _mm512_load_si512(buckets + 16);
    for (int i = 0; i < n; ++i) rank[i] = _mm512_srli_epi32(_mm512_castps_si512(x[i]), kBits);
    for (int i = 0; i < n; ++i)
      rank[i] = _mm512_add_epi32(_mm512_castps_si512(x[i]), _mm512_permutex2var_epi32(low, rank[i], high));
    for (int i = 0; i < n; ++i) rank[i] = _mm512_srli_epi32(rank[i], kBits);
  }

  // Packs byte kByte of each of 64 words.
  template <int kByte>
  HWY_INLINE static __m512i pack_bytes(const __m512i (&words)[kTileVectors]) {
    alignas(64) static constexpr auto kWhich = [] {
      struct {
        u8 of[64];
      } which{};
      for (int i = 0; i < 64; ++i) which.of[i] = static_cast<u8>(4 * (i & 31) + kByte);
      return which;
    }();
    const __m512i bytes = _mm512_load_si512(kWhich.of);
    return _mm512_mask_blend_epi64(0xf0, _mm512_permutex2var_epi8(words[0], bytes, words[1]),
                                   _mm512_permutex2var_epi8(words[2], bytes, words[3]));
  }

  HWY_INLINE static void store(__m512i bytes, u4* codes) {
    const __m512i pairs = _mm512_maddubs_epi16(bytes, _mm512_set1_epi16(0x1001));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), _mm512_cvtepi16_epi8(pairs));
  }

  // Encodes imported second moments, and tiles whose index is not a multiple of four.
  HWY_NOINLINE void encode_generic(const float* values, float inverse, const TileRounding& rounding, u32 index,
                                   u4* codes) const {
    GenericCodec<Dynamic4, kSigned>::encode(values, inverse, rounding, index, codes);
  }
};

#endif
