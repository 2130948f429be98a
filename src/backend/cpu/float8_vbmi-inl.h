// float8 with AVX-512 VBMI. Decoding looks up the upper two bytes of a float (the lower two are 0), 64 codes at a time;
// encoding is the portable arithmetic, four vectors at a time, with codes packed to bytes.
#if HWY_TARGET == HWY_AVX3_DL

struct Float8Vbmi {
  alignas(64) u8 upper[2][256];                   // [byte 2, byte 3][code]; for signed codes, of the magnitude
  alignas(64) u8 code_bytes[64], sign_bytes[64];  // bytes 2 and 3 of two vectors of 16 words, twice
};

template <bool kSigned>
const Float8Vbmi& float8_vbmi() {
  static const Float8Vbmi tables = [] {
    Float8Vbmi t;
    for (u32 code = 0; code < 256; ++code) {
      const u32 word = bits(Float8::decode<kSigned>({}, kSigned ? code & 127 : code));
      for (int b = 0; b < 2; ++b) t.upper[b][code] = static_cast<u8>(word >> (16 + 8 * b));
    }
    for (int i = 0; i < 64; ++i) {
      t.code_bytes[i] = static_cast<u8>(4 * (i & 31) + 2);
      t.sign_bytes[i] = static_cast<u8>(4 * (i & 31) + 3);
    }
    return t;
  }();
  return tables;
}

template <bool kSigned>
struct CpuCodec<Float8, kSigned> : GenericCodec<Float8, kSigned> {
  const Float8Vbmi& t_ = float8_vbmi<kSigned>();

  HWY_INLINE void decode(const u8* codes, float scale, vf (&out)[kTileVectors]) const {
    // As in dynamic8_vbmi-inl.h, transposing first puts the result of the interleaves in order.
    const __m512i transpose = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i c = _mm512_permutexvar_epi32(transpose, _mm512_loadu_si512(codes));
    const __mmask64 high = _mm512_movepi8_mask(c);
    __m512i low_byte = look_up(0, c, high), high_byte = look_up(1, c, high);
    if constexpr (kSigned)
      high_byte = _mm512_ternarylogic_epi32(high_byte, c, _mm512_set1_epi8(static_cast<char>(0x80)), kOrAnd);
    const __m512i low = _mm512_unpacklo_epi8(low_byte, high_byte), upper = _mm512_unpackhi_epi8(low_byte, high_byte);
    const __m512i zero = _mm512_setzero_si512();
    const vf s(scale);
    out[0] = words(_mm512_unpacklo_epi16(zero, low)) * s;
    out[1] = words(_mm512_unpackhi_epi16(zero, low)) * s;
    out[2] = words(_mm512_unpacklo_epi16(zero, upper)) * s;
    out[3] = words(_mm512_unpackhi_epi16(zero, upper)) * s;
  }

  HWY_INLINE void encode(const float* values, float inverse, const TileRounding& rounding, u32 index, u8* codes) const {
    if (HWY_UNLIKELY(!rounding.stochastic || index % 4 || inverse < 0x1p-126f))
      return encode_generic(values, inverse, rounding, index, codes);
    constexpr int n = kTileVectors;
    // The portable arithmetic on unscaled values: the scale is a power of two, so only the constants change.
    const float scale = as_float((254u << 23) - bits(inverse));
    constexpr u32 kHalf = 1u << (Float8::kCut - 17);
    const u32 first = Float8::kZeroBits<kSigned> - kHalf + (127u << 23) - bits(inverse);
    const __m512 low = _mm512_set1_ps(Float8::kHalfLow<kSigned> * scale), half = _mm512_set1_ps(0.5f);
    const RandomShorts random(index, rounding);
    __m512 x[n], t[n];
    __m512i word[n];
    for (int i = 0; i < n; ++i) x[i] = _mm512_loadu_ps(values + 16 * i);
    const __m512 zero = _mm512_setzero_ps();  // what NaNs become
    for (int i = 0; i < n; ++i) t[i] = kSigned ? max_abs(vf(0.f), vf(vf::Vec{x[i]})).v.raw : _mm512_max_ps(x[i], zero);
    for (int i = 0; i < n; ++i) t[i] = _mm512_max_ps(t[i], _mm512_fmadd_ps(t[i], half, low));
    for (int i = 0; i < n; ++i)
      word[i] = _mm512_sub_epi32(_mm512_castps_si512(t[i]), _mm512_set1_epi32(static_cast<int>(first)));
    // Puts the code into byte 2, above 16 bits from which the random bits may carry.
    for (int i = 0; i < n; ++i) word[i] = _mm512_srli_epi32(word[i], Float8::kCut - 16);
    const __m512i codes_of = pack(t_.code_bytes, word);
    __m512i packed = _mm512_mask_sub_epi8(codes_of, random.carries(word), codes_of, _mm512_set1_epi8(-1));
    if constexpr (kSigned) {
      const __m512i raw[n] = {_mm512_castps_si512(x[0]), _mm512_castps_si512(x[1]), _mm512_castps_si512(x[2]),
                              _mm512_castps_si512(x[3])};
      packed = _mm512_ternarylogic_epi32(packed, pack(t_.sign_bytes, raw), _mm512_set1_epi8(static_cast<char>(0x80)),
                                         kOrAnd);
    } else if (HWY_UNLIKELY(_mm512_testn_epi8_mask(packed, packed) != 0)) {
      u64 positive = 0;
      for (int i = 0; i < n; ++i)
        positive |= static_cast<u64>(_mm512_cmp_ps_mask(x[i], _mm512_setzero_ps(), _CMP_GT_OQ)) << (16 * i);
      packed = _mm512_maskz_max_epu8(positive, packed, _mm512_set1_epi8(1));
    }
    _mm512_storeu_si512(codes, packed);
  }

 private:
  static constexpr int kOrAnd = 0xf8;  // a | (b & c)

  HWY_INLINE static vf words(__m512i x) { return vf(vf::Vec{_mm512_castsi512_ps(x)}); }

  // high: lanes with codes of 128 and above.
  HWY_INLINE __m512i look_up(int byte, __m512i code, __mmask64 high) const {
    const auto* p = reinterpret_cast<const __m512i*>(t_.upper[byte]);
    const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(p), code, _mm512_load_si512(p + 1));
    if constexpr (kSigned) return low;
    const __m512i above = _mm512_permutex2var_epi8(_mm512_load_si512(p + 2), code, _mm512_load_si512(p + 3));
    return _mm512_mask_blend_epi8(high, low, above);
  }

  // Packs one byte of each of 64 words.
  HWY_INLINE static __m512i pack(const u8 (&which)[64], const __m512i (&words)[kTileVectors]) {
    const __m512i bytes = _mm512_load_si512(which);
    return _mm512_mask_blend_epi64(0xf0, _mm512_permutex2var_epi8(words[0], bytes, words[1]),
                                   _mm512_permutex2var_epi8(words[2], bytes, words[3]));
  }

  // Encodes imported values.
  HWY_NOINLINE void encode_generic(const float* values, float inverse, const TileRounding& rounding, u32 index,
                                   u8* codes) const {
    GenericCodec<Float8, kSigned>::encode(values, inverse, rounding, index, codes);
  }
};

#endif
