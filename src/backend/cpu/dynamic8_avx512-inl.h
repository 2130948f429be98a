// dynamic8 with AVX-512, without gathers. Decoding looks up codes in planes that registers hold (dynamic8_vbmi-inl.h,
// dynamic8_words-inl.h); encoding finds the lines of dynamic8_roof-inl.h by the exponent. A dynamic8 AdamW step in
// cache runs at twice the speed of the gather form.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL

template <bool kSigned>
struct Dynamic8Tables512 {
  Dynamic8Planes<kSigned> planes;
  Dynamic8Roof<kSigned> roof;
};

template <bool kSigned>
const Dynamic8Tables512<kSigned>& dynamic8_tables512() {
  static const Dynamic8Tables512<kSigned> tables = [] {
    const Dynamic8Table& map = codec_tables<Dynamic8>().side[kSigned];
    return Dynamic8Tables512<kSigned>{Dynamic8Planes<kSigned>(map), Dynamic8Roof<kSigned>(map)};
  }();
  return tables;
}

template <bool kSigned>
struct CpuCodec<Dynamic8, kSigned> : GenericCodec<Dynamic8, kSigned> {
  const Dynamic8Planes<kSigned>& planes = dynamic8_tables512<kSigned>().planes;
  const Dynamic8Roof<kSigned>& roof = dynamic8_tables512<kSigned>().roof;

  // In each word, byte 2 is the rank on the roof (second moments: rank + 1), and the lower 16 bits are its fraction.
  struct Begun {
    __m512i word[kTileVectors];
  };

  HWY_INLINE void decode(const u8* codes, float scale, vf (&out)[kTileVectors]) const {
    planes.decode(codes, scale, out);
  }

  HWY_INLINE void encode(const float* values, float inverse, const TileRounding& rounding, u32 index, u8* codes) const {
    const u64 unsure = end(begin(values, inverse), values, rounding, index, codes);
    if (HWY_UNLIKELY(unsure)) encode_exactly(unsure, values, inverse, rounding, index, codes);
  }

  HWY_INLINE Begun begin(const float* values, float inverse) const {
    // Runs each operation for all four vectors, because one chain is longer than the processor's lookahead.
    constexpr int n = kTileVectors;
    const __m512 factor = _mm512_set1_ps(inverse);
    // With an inverse of 0 all values are 0: an infinity times 0 is a NaN.
    const __mmask16 some = _mm512_test_epi32_mask(_mm512_castps_si512(factor), _mm512_castps_si512(factor));
    __m512 x[n], y[n];
    __m512i row[n];
    for (int i = 0; i < n; ++i) x[i] = _mm512_loadu_ps(values + 16 * i);
    for (int i = 0; i < n; ++i) {
      if constexpr (kSigned)
        x[i] = _mm512_fmadd_ps(_mm512_maskz_range_ps(some, x[i], _mm512_setzero_ps(), kLargerMagnitude), factor,
                               _mm512_load_ps(roof.shift));
      else
        x[i] = _mm512_fixupimm_ps(_mm512_max_ps(_mm512_mul_ps(x[i], factor), _mm512_load_ps(roof.lowest)), x[i],
                                  _mm512_set1_epi32(kZeroUnlessPositive), 0);
    }
    for (int i = 0; i < n; ++i) row[i] = _mm512_srli_epi32(_mm512_castps_si512(x[i]), 23);  // pick uses 5 bits
    for (int i = 0; i < n; ++i) row[i] = _mm512_add_epi32(_mm512_castps_si512(x[i]), pick(roof.carry, row[i]));
    for (int i = 0; i < n; ++i) row[i] = _mm512_srli_epi32(row[i], 23);
    for (int i = 0; i < n; ++i) y[i] = _mm512_fmadd_ps(x[i], pick(roof.slope, row[i]), pick(roof.intercept, row[i]));
    Begun begun;
    for (int i = 0; i < n; ++i) {
      const __m512i word = _mm512_castps_si512(y[i]);
      begun.word[i] = kSigned ? word : _mm512_add_epi32(word, word);  // from units of 2^-15 to 2^-16
    }
    return begun;
  }

  // Returns the elements left to encode_exactly.
  HWY_INLINE u64 end(const Begun& begun, const float* values, const TileRounding& rounding, u32 index,
                     u8* codes) const {
    constexpr int n = kTileVectors;
    const RandomShorts random = rounding.stochastic ? RandomShorts(index, rounding) : RandomShorts::one_half();
    const __m512i one = _mm512_load_si512(roof.one);
    const __m512i rank = planes.ranks(begun.word);
    // Ranks before a joint of two decades. Saturation excludes the rank below 1's; rank 0 has no joint before it.
    __mmask64 joint;
    if constexpr (kSigned)
      joint = _mm512_mask_testn_epi8_mask(_mm512_test_epi8_mask(rank, rank), rank, _mm512_adds_epi8(rank, one));
    else
      joint = _mm512_testn_epi8_mask(rank, _mm512_adds_epu8(rank, one));
    __m512i sum[2];
    __mmask32 moves[2];  // to the rank above; of second moments, whose word has it already, to the rank below
    for (int i = 0; i < 2; ++i) {
      const __m512i f = halves(begun.word[2 * i], begun.word[2 * i + 1], 0);
      // The smaller of f and 1 - f is the magnitude of f as a signed number.
      const __m512i less = _mm512_mulhi_epu16(_mm512_abs_epi16(f), _mm512_load_si512(roof.two_thirds));
      const __m512i p = _mm512_mask_sub_epi16(f, static_cast<__mmask32>(joint >> (32 * i)), f, less);
      sum[i] = _mm512_add_epi16(p, random.words[i]);
      moves[i] =
          kSigned ? _mm512_cmplt_epu16_mask(sum[i], random.words[i]) : _mm512_cmpge_epu16_mask(sum[i], random.words[i]);
    }
    const __mmask64 moved = _mm512_kunpackd(moves[1], moves[0]);
    __m512i packed;
    if constexpr (kSigned) {
      __m512i value[n];
      for (int i = 0; i < n; ++i) value[i] = _mm512_loadu_si512(values + 16 * i);
      const __m512i to = _mm512_mask_add_epi8(rank, moved, rank, one), middle = _mm512_load_si512(roof.middle);
      // The map has no entry at -1.
      packed = _mm512_mask_sub_epi8(_mm512_add_epi8(middle, to), negative(value), middle, _mm512_min_epu8(to, middle));
    } else {
      packed = _mm512_mask_sub_epi8(rank, moved, rank, one);
    }
    _mm512_storeu_si512(codes, packed);
    if (HWY_UNLIKELY(rounding.stochastic && index % 4)) return ~u64{0};
    const __m512i unsure = _mm512_load_si512(roof.unsure);
    if (HWY_LIKELY(_mm512_cmplt_epu16_mask(_mm512_min_epu16(sum[0], sum[1]), unsure) == 0)) return 0;
    return _mm512_kunpackd(_mm512_cmplt_epu16_mask(sum[1], unsure), _mm512_cmplt_epu16_mask(sum[0], unsure));
  }

  // Encodes with the portable code, which decides near boundaries. Not inlined, because it is rare.
  HWY_NOINLINE void encode_exactly(u64 which, const float* values, float inverse, const TileRounding& rounding,
                                   u32 index, u8* codes) const {
    if (which == ~u64{0}) return GenericCodec<Dynamic8, kSigned>::encode(values, inverse, rounding, index, codes);
    for (; which; which &= which - 1) {
      const auto e = static_cast<u32>(__builtin_ctzll(which));
      codes[e] = static_cast<u8>(encode_at<Dynamic8, kSigned>(this->tables, values[e], inverse, rounding, index + e));
    }
  }

 private:
  // For fixupimm_ps, which replaces results for zeros, negative values and NaNs by 0.
  static constexpr int kZeroUnlessPositive = 0x08080888;
  static constexpr int kLargerMagnitude = 0b1011;  // for range_ps, which returns the other operand if one is a NaN

  HWY_INLINE static __mmask64 negative(const __m512i (&x)[kTileVectors]) {
    // Saturation keeps the sign.
    const __m512i words[2] = {_mm512_packs_epi32(x[0], x[1]), _mm512_packs_epi32(x[2], x[3])};
    // Packing works within 128-bit lanes.
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_movepi8_mask(_mm512_permutexvar_epi32(order, _mm512_packs_epi16(words[0], words[1])));
  }

  HWY_INLINE static __m512 pick(const float (&table)[32], __m512i row) {
    return _mm512_permutex2var_ps(_mm512_load_ps(table), row, _mm512_load_ps(table + 16));
  }
  HWY_INLINE static __m512i pick(const u32 (&table)[32], __m512i row) {
    return _mm512_permutex2var_epi32(_mm512_load_si512(table), row, _mm512_load_si512(table + 16));
  }
};

#endif
