// dynamic8 with AVX-512: no gathers. Decoding looks codes up in planes held in registers (dynamic8_vbmi-inl.h,
// dynamic8_words-inl.h); encoding uses the lines of dynamic8_lines-inl.h, found by the exponent.
// A dynamic8 AdamW step in cache runs at twice the speed of the gather form.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL

template <bool kSigned>
struct Dynamic8Rows {
  Dynamic8Planes<kSigned> planes;
  // Row e (exponent & 31) holds the decade that is current at the start of binade e. Where a decade ends inside the
  // binade, adding `carry` to the bits of a value above that joint carries into the exponent: row e + 1.
  alignas(64) u32 carry[32];
  alignas(64) float slope[32], count[32];
};

template <bool kSigned>
const Dynamic8Rows<kSigned>& dynamic8_rows() {
  static const Dynamic8Rows<kSigned> tables = [] {
    Dynamic8Rows<kSigned> t{.planes = Dynamic8Planes<kSigned>(codec_tables<Dynamic8>().side[kSigned])};
    const Dynamic8Lines& lines = dynamic8_lines<kSigned>();
    int decade = 0;
    for (int binade = 127 - 30; binade <= 127; ++binade) {
      const int row = binade & 31;
      t.slope[row] = lines.slope[decade];
      t.count[row] = lines.count[decade];
      t.carry[row] = 0;
      const u32 joint = bits(lines.joint[decade]);
      if (static_cast<int>(joint >> 23) == binade) t.carry[row] = 0x7fffffu - (joint & 0x7fffffu), ++decade;
    }
    t.slope[0] = t.slope[31], t.count[0] = t.count[31], t.carry[0] = 0;  // not reached: values are at most 1
    return t;
  }();
  return tables;
}

template <bool kSigned>
struct CpuCodec<Dynamic8, kSigned> : GenericCodec<Dynamic8, kSigned> {
  const Dynamic8Rows<kSigned>& t = dynamic8_rows<kSigned>();

  HWY_INLINE void decode(const u8* codes, float scale, vf (&out)[kTileVectors]) const {
    t.planes.decode(codes, scale, out);
  }

  HWY_INLINE void encode(const float* values, float inverse, const TileRounding& rounding, u32 index, u8* codes) const {
    if (rounding.stochastic) return encode_stochastic(values, inverse, rounding, index, codes);
    using L = Dynamic8Lines;
    // Step by step for all four vectors: a chain is longer than what the processor looks ahead.
    constexpr int n = kTileVectors;
    __m512 value[n], a[n], z[n];
    __m512i row[n], word[n];
    __mmask16 sure = 0xffff;
    for (int i = 0; i < n; ++i) value[i] = _mm512_loadu_ps(values + 16 * i);
    for (int i = 0; i < n; ++i) a[i] = _mm512_mul_ps(value[i], _mm512_set1_ps(inverse));
    for (int i = 0; i < n; ++i) a[i] = _mm512_range_ps(a[i], _mm512_set1_ps(L::lowest(kSigned)), kLargerMagnitude);
    for (int i = 0; i < n; ++i) row[i] = _mm512_srli_epi32(_mm512_castps_si512(a[i]), 23);
    for (int i = 0; i < n; ++i) row[i] = _mm512_add_epi32(_mm512_castps_si512(a[i]), pick(t.carry, row[i]));
    // A joint itself belongs to the lower index: for negative values that is the larger magnitude.
    if constexpr (kSigned)
      for (int i = 0; i < n; ++i)
        row[i] = _mm512_add_epi32(row[i], _mm512_srli_epi32(_mm512_castps_si512(value[i]), 31));
    for (int i = 0; i < n; ++i) row[i] = _mm512_srli_epi32(row[i], 23);
    for (int i = 0; i < n; ++i) z[i] = _mm512_fmadd_ps(a[i], pick(t.slope, row[i]), _mm512_set1_ps(L::kIntercept));
    for (int i = 0; i < n; ++i) z[i] = _mm512_min_ps(z[i], _mm512_set1_ps(L::kLargestZ));
    for (int i = 0; i < n; ++i) z[i] = _mm512_fmadd_ps(z[i], pick(t.count, row[i]), _mm512_set1_ps(L::offset(kSigned)));
    for (int i = 0; i < n; ++i) word[i] = _mm512_cvttps_epi32(z[i]);
    for (int i = 0; i < n; ++i) sure = _mm512_mask_test_epi32_mask(sure, word[i], _mm512_set1_epi32(L::kFraction));
    if (HWY_UNLIKELY(!_kortestc_mask16_u8(sure, sure))) return encode_generic(values, inverse, rounding, index, codes);
    __m512i packed = t.planes.ranks(word);
    if constexpr (kSigned) {
      const __mmask64 negative = t.planes.negative(value);
      const __m512i middle = _mm512_set1_epi8(Dynamic8::kSignedZero);
      const __m512i above = _mm512_add_epi8(middle, packed);
      // There is no entry at -1.
      packed = _mm512_mask_sub_epi8(above, negative, middle, _mm512_min_epu8(packed, middle));
    } else {
      u64 positive = 0;  // an exact zero alone is 0
      for (int i = 0; i < n; ++i)
        positive |= static_cast<u64>(_mm512_cmp_ps_mask(value[i], _mm512_setzero_ps(), _CMP_GT_OQ)) << (16 * i);
      packed = _mm512_maskz_mov_epi8(positive, packed);
    }
    _mm512_storeu_si512(codes, packed);
  }

 private:
  static constexpr int kLargerMagnitude = 0b1011;  // of range_ps: the other operand where one is a NaN

  // the portable stochastic_rank with its rows in registers. Out of line, for the other form is as long.
  HWY_NOINLINE void encode_stochastic(const float* values, float inverse, const TileRounding& rounding, u32 index,
                                      u8* codes) const {
    constexpr int n = kTileVectors;
    const Dynamic8Table& map = this->tables.side[kSigned];
    if (HWY_UNLIKELY(index % 4)) return encode_generic(values, inverse, rounding, index, codes);
    const RandomShorts random(index, rounding);
    __m512 x[n], a[n], y[n], joint[n];
    __m512i row[n], word[n];
    for (int i = 0; i < n; ++i) x[i] = _mm512_mul_ps(_mm512_loadu_ps(values + 16 * i), _mm512_set1_ps(inverse));
    for (int i = 0; i < n; ++i)
      a[i] = _mm512_range_ps(x[i], _mm512_set1_ps(kSigned ? 0.f : map.lowest), kLargerMagnitude);
    for (int i = 0; i < n; ++i) a[i] = _mm512_min_ps(a[i], _mm512_set1_ps(1.f));
    for (int i = 0; i < n; ++i) {
      const __m512i bits = _mm512_castps_si512(a[i]);
      word[i] = kSigned ? _mm512_max_epu32(bits, _mm512_set1_epi32(map.kFirstExponent << 23)) : bits;
    }
    for (int i = 0; i < n; ++i) row[i] = _mm512_srli_epi32(word[i], 23);  // permutations look at the lower 5 bits
    for (int i = 0; i < n; ++i) row[i] = _mm512_add_epi32(word[i], pick(map.carry, row[i]));
    for (int i = 0; i < n; ++i) row[i] = _mm512_srli_epi32(row[i], 23);
    for (int i = 0; i < n; ++i) y[i] = _mm512_mul_ps(a[i], pick(map.slope, row[i]));
    for (int i = 0; i < n; ++i) y[i] = _mm512_add_ps(y[i], pick(map.intercept, row[i]));
    for (int i = 0; i < n; ++i) joint[i] = _mm512_mul_ps(a[i], pick(map.joint_slope, row[i]));
    for (int i = 0; i < n; ++i) joint[i] = _mm512_add_ps(joint[i], pick(map.joint_intercept, row[i]));
    for (int i = 0; i < n; ++i) word[i] = _mm512_cvttps_epi32(_mm512_min_ps(y[i], joint[i]));
    __m512i packed = t.planes.ranks(word);
    packed = _mm512_mask_sub_epi8(packed, random.carries(word), packed, _mm512_set1_epi8(-1));
    if constexpr (kSigned) {
      u64 negative = 0;
      for (int i = 0; i < n; ++i)
        negative |= static_cast<u64>(_mm512_cmp_ps_mask(x[i], _mm512_setzero_ps(), _CMP_LT_OQ)) << (16 * i);
      const __m512i middle = _mm512_set1_epi8(Dynamic8::kSignedZero);
      const __m512i above = _mm512_add_epi8(middle, packed);
      packed = _mm512_mask_sub_epi8(above, negative, middle, _mm512_min_epu8(packed, middle));
    } else {
      u64 positive = 0;
      for (int i = 0; i < n; ++i)
        positive |=
            static_cast<u64>(_mm512_cmp_ps_mask(_mm512_loadu_ps(values + 16 * i), _mm512_setzero_ps(), _CMP_GT_OQ))
            << (16 * i);
      packed = _mm512_maskz_mov_epi8(positive, packed);
    }
    _mm512_storeu_si512(codes, packed);
  }

  // The same tile by the generic code: the arbiter near boundaries. Out of line: it is rare.
  HWY_NOINLINE void encode_generic(const float* values, float inverse, const TileRounding& rounding, u32 index,
                                   u8* codes) const {
    GenericCodec<Dynamic8, kSigned>::encode(values, inverse, rounding, index, codes);
  }

  HWY_INLINE static __m512 pick(const float (&table)[32], __m512i row) {
    return _mm512_permutex2var_ps(_mm512_load_ps(table), row, _mm512_load_ps(table + 16));
  }
  HWY_INLINE static __m512i pick(const u32 (&table)[32], __m512i row) {
    return _mm512_permutex2var_epi32(_mm512_load_si512(table), row, _mm512_load_si512(table + 16));
  }
};

#endif
