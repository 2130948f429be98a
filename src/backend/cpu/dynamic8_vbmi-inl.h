// The VBMI part of dynamic8 with AVX-512: looks up bytes in four 256-byte planes that registers hold, and extracts
// bytes from words. dynamic8_avx512-inl.h has the rest.
#if HWY_TARGET == HWY_AVX3_DL

template <bool kSigned>
struct Dynamic8Planes {
  // [plane][entry]: byte `plane` of the entry's float. Signed: entry j is rank j, or for 0 the negative of rank 128;
  // unsigned: the code.
  alignas(64) u8 plane[4][256];
  alignas(64) u8 rank_bytes[64];  // byte 2 of two vectors of 16 words, twice

  explicit Dynamic8Planes(const Dynamic8Table& map) {
    for (int j = 0; j < 256; ++j) {
      u32 word = bits(map.value[kSigned ? 127 + (j & 127 ? j & 127 : 128) : j]);
      if (kSigned && j == 0) word |= 0x80000000u;
      for (int k = 0; k < 4; ++k) plane[k][j] = static_cast<u8>(word >> (8 * k));
    }
    for (int i = 0; i < 64; ++i) rank_bytes[i] = static_cast<u8>(4 * (i & 31) + 2);
  }

  HWY_INLINE void decode(const u8* codes, float scale, vf (&out)[kTileVectors]) const {
    // The interleaves below work within 128-bit lanes; transposing the 4x4 double words of codes first restores the
    // order.
    const __m512i transpose = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i c = _mm512_permutexvar_epi32(transpose, _mm512_loadu_si512(codes));
    __m512i index = c, distance = c;
    __mmask64 mask;
    if constexpr (kSigned) {
      distance = _mm512_sub_epi8(c, _mm512_set1_epi8(Dynamic8::kSignedZero));
      index = _mm512_abs_epi8(distance);
      mask = _mm512_test_epi8_mask(distance, distance);
    } else {
      mask = _mm512_movepi8_mask(c);
    }
    const __m512i p0 = look_up(0, index, mask);
    const __m512i p1 = look_up(1, index, mask);
    const __m512i p2 = look_up(2, index, mask);
    __m512i p3 = look_up(3, index, mask);
    if constexpr (kSigned) {
      // Flips the sign if the distance is negative. It is -128 for the code 255, of the positive rank 128.
      constexpr int kXorAnd = 0x78;  // a ^ (b & c)
      p3 = _mm512_ternarylogic_epi32(p3, distance, _mm512_set1_epi8(static_cast<char>(0x80)), kXorAnd);
    }
    const __m512i low01 = _mm512_unpacklo_epi8(p0, p1), high01 = _mm512_unpackhi_epi8(p0, p1);
    const __m512i low23 = _mm512_unpacklo_epi8(p2, p3), high23 = _mm512_unpackhi_epi8(p2, p3);
    const vf s(scale);
    out[0] = words(_mm512_unpacklo_epi16(low01, low23)) * s;
    out[1] = words(_mm512_unpackhi_epi16(low01, low23)) * s;
    out[2] = words(_mm512_unpacklo_epi16(high01, high23)) * s;
    out[3] = words(_mm512_unpackhi_epi16(high01, high23)) * s;
  }

  // Returns byte 2 of each of 64 words.
  HWY_INLINE __m512i ranks(const __m512i (&words)[kTileVectors]) const {
    const __m512i bytes = _mm512_load_si512(rank_bytes);
    return _mm512_mask_blend_epi64(0xf0, _mm512_permutex2var_epi8(words[0], bytes, words[1]),
                                   _mm512_permutex2var_epi8(words[2], bytes, words[3]));
  }

 private:
  // mask: for signed codes, entries that are not zero; for unsigned ones, codes of 128 and above.
  HWY_INLINE __m512i look_up(int k, __m512i index, __mmask64 mask) const {
    const auto* p = reinterpret_cast<const __m512i*>(plane[k]);
    if constexpr (kSigned) {
      return _mm512_maskz_permutex2var_epi8(mask, _mm512_load_si512(p), index, _mm512_load_si512(p + 1));
    } else {
      const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(p), index, _mm512_load_si512(p + 1));
      const __m512i high = _mm512_permutex2var_epi8(_mm512_load_si512(p + 2), index, _mm512_load_si512(p + 3));
      return _mm512_mask_blend_epi8(mask, low, high);
    }
  }

  HWY_INLINE static vf words(__m512i x) { return vf(vf::Vec{_mm512_castsi512_ps(x)}); }
};

#endif
