// dynamic8 with AVX-512 VBMI: no gathers. Decoding looks bytes up in four 256-byte planes held in registers; encoding
// uses that within a decade of the map the entries are equally spaced, so the rank of a value is a linear function of
// it.
//
// Exact: a tile in which some value lies within 2^-13 of the spacing from a boundary (about 1.6 % of tiles), or on a
// boundary between decades, is redone by the portable code. A test compares the two over every float.
// A dynamic8 AdamW step in cache runs at twice the speed of the gather form (Zen 4: 1.02 against 0.50 Gelt/s).
#if HWY_TARGET == HWY_AVX3_DL

struct Dynamic8Vbmi {
  // [plane][entry]: byte `plane` of the entry's float. Signed: entry j is rank j + 1 (positive); unsigned: the code.
  alignas(64) u8 plane[4][256];
  // Per row of the line table, scaled by 2^16: rank + offset = min(a * slope + start, last).
  alignas(64) float slope[32], start[32], last[32];
  // The value within binade e at which its second decade begins; infinity where there is none. Row e holds the decade
  // that is current at the start of binade e (exponent & 31), so a value at or above the bound takes row e + 1.
  alignas(64) float bound[32];
  alignas(64) u8 third_bytes[64];  // of two vectors of 16 words, twice
};

template <bool kSigned>
const Dynamic8Vbmi& dynamic8_vbmi() {
  static const Dynamic8Vbmi tables = [] {
    const Dynamic8Table& map = codec_tables<Dynamic8>().side[kSigned];
    Dynamic8Vbmi t;
    for (int j = 0; j < 256; ++j) {
      const u32 word = bits(map.value[kSigned ? 128 + (j & 127) : j]);
      for (int k = 0; k < 4; ++k) t.plane[k][j] = static_cast<u8>(word >> (8 * k));
    }
    // Decade i holds `count` ranks from `first`, at 10^(i-6) * (0.1 + 0.9 (k + 0.5) / count). Decade -1 is the zero
    // (second moments never use it) and decade 7 the entry 1.
    const double unit = 65536, offset = kSigned ? -0.5 : 8 / unit;
    const float none = __builtin_inff();
    int decade = kSigned ? -1 : 0;
    for (int binade = 127 - 30; binade <= 127; ++binade) {
      const int row = binade & 31;
      const int count = decade < 0 || decade > 6 ? 1 : 1 << (decade + !kSigned);
      const int first = decade < 0 ? 0 : (kSigned ? 1 << decade : (2 << decade) - 1);
      const double scale = power(10, decade - 6);
      const bool flat = decade < 0 || decade > 6;
      t.slope[row] = flat ? 0.f : static_cast<float>(unit * count / (0.9 * scale));
      t.start[row] = static_cast<float>(unit * (flat ? first + 0.5 + offset : first - count / 9.0 + offset));
      t.last[row] = static_cast<float>(unit * (first + count - 0.5 + offset));
      t.bound[row] = none;
      if (decade < 7) {
        const int zero = kSigned ? static_cast<int>(Dynamic8::kSignedZero) : 0;
        const int end = zero + first + count;  // first code of the next decade
        const float joint = (map.value[end - 1] + map.value[end]) * 0.5f;
        if (static_cast<int>(bits(joint) >> 23) == binade) t.bound[row] = joint, ++decade;
      }
    }
    // The row after the last binade wraps to 0 (128 & 31), the one before the first is 0 as well and is never read.
    t.slope[0] = 0.f, t.start[0] = t.start[31], t.last[0] = t.last[31], t.bound[0] = none;
    for (int i = 0; i < 64; ++i) t.third_bytes[i] = static_cast<u8>(4 * (i & 31) + 2);
    return t;
  }();
  return tables;
}

template <bool kSigned>
struct CpuCodec<Dynamic8, kSigned> : GenericCodec<Dynamic8, kSigned> {
  const Dynamic8Vbmi& t = dynamic8_vbmi<kSigned>();

  // mask: signed: entries that are not zero; unsigned: codes of 128 and above.
  HWY_INLINE __m512i look_up(int plane, __m512i index, __mmask64 mask) const {
    const auto* p = reinterpret_cast<const __m512i*>(t.plane[plane]);
    if constexpr (kSigned) {
      return _mm512_maskz_permutex2var_epi8(mask, _mm512_load_si512(p), index, _mm512_load_si512(p + 1));
    } else {
      const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(p), index, _mm512_load_si512(p + 1));
      const __m512i high = _mm512_permutex2var_epi8(_mm512_load_si512(p + 2), index, _mm512_load_si512(p + 3));
      return _mm512_mask_blend_epi8(mask, low, high);
    }
  }

  HWY_INLINE static vf words(__m512i x) { return vf(decltype(vf::v){_mm512_castsi512_ps(x)}); }

  HWY_INLINE void decode(const u8* codes, float scale, vf (&out)[kTileVectors]) const {
    // The interleaves below work within 128-bit lanes; transposing the 4x4 double words of codes first makes the result
    // come out in order.
    const __m512i transpose = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i c = _mm512_permutexvar_epi32(transpose, _mm512_loadu_si512(codes));
    __m512i index = c;
    __mmask64 mask = _mm512_movepi8_mask(c);
    if constexpr (kSigned) {
      index = _mm512_mask_sub_epi8(c, ~mask, _mm512_set1_epi8(126), c);  // negative codes count down from 126
      mask = _mm512_cmpneq_epi8_mask(c, _mm512_set1_epi8(127));
    }
    const __m512i p0 = look_up(0, index, mask);
    const __m512i p1 = look_up(1, index, mask);
    const __m512i p2 = look_up(2, index, mask);
    __m512i p3 = look_up(3, index, mask);
    if constexpr (kSigned) {
      const __mmask64 negative = _mm512_cmplt_epu8_mask(c, _mm512_set1_epi8(127));
      p3 = _mm512_or_si512(p3, _mm512_maskz_mov_epi8(negative, _mm512_set1_epi8(static_cast<char>(0x80))));
    }
    const __m512i low01 = _mm512_unpacklo_epi8(p0, p1), high01 = _mm512_unpackhi_epi8(p0, p1);
    const __m512i low23 = _mm512_unpacklo_epi8(p2, p3), high23 = _mm512_unpackhi_epi8(p2, p3);
    const vf s(scale);
    out[0] = words(_mm512_unpacklo_epi16(low01, low23)) * s;
    out[1] = words(_mm512_unpackhi_epi16(low01, low23)) * s;
    out[2] = words(_mm512_unpacklo_epi16(high01, high23)) * s;
    out[3] = words(_mm512_unpackhi_epi16(high01, high23)) * s;
  }

  HWY_INLINE void encode(const float* values, float inverse, const Rounding& rounding, u32 index, u8* codes) const {
    const __m512 inv = _mm512_set1_ps(inverse);
    // Any value of the lowest row will do as the floor: it keeps tiny values (and exponents below the table) there.
    const __m512 floor = _mm512_set1_ps(kSigned ? 0x1p-23f : 0x1p-22f);
    const __m512i sign_bit = _mm512_set1_epi32(static_cast<int>(0x80000000u));
    __m512i word[4];
    __mmask16 unsure = 0, nonzero[4];
    for (int i = 0; i < 4; ++i) {
      const __m512 value = _mm512_loadu_ps(values + 16 * i);
      const __m512 x = _mm512_mul_ps(value, inv);
      const __m512 a = _mm512_range_ps(x, floor, 0b1011);  // max(|x|, floor)
      __m512i row = _mm512_srli_epi32(_mm512_castps_si512(a), 23);
      const __m512 bound = pick(t.bound, row);
      // On a bound itself the sign decides; that is for the portable code.
      if constexpr (kSigned) unsure |= _mm512_cmp_ps_mask(a, bound, _CMP_EQ_OQ);
      row = _mm512_mask_add_epi32(row, _mm512_cmp_ps_mask(a, bound, _CMP_GT_OQ), row, _mm512_set1_epi32(1));
      __m512 y = _mm512_min_ps(_mm512_fmadd_ps(a, pick(t.slope, row), pick(t.start, row)), pick(t.last, row));
      if constexpr (kSigned) {
        y = _mm512_castsi512_ps(
            _mm512_ternarylogic_epi32(_mm512_castps_si512(y), _mm512_castps_si512(x), sign_bit, 0x78));
        // Ranks count from the middle of code 127, both ways; there is no entry at -1.
        y = _mm512_max_ps(_mm512_add_ps(y, _mm512_set1_ps(127.5f * 65536 + 8)), _mm512_set1_ps(0.25f * 65536));
      } else {
        nonzero[i] = _mm512_test_epi32_mask(_mm512_castps_si512(value), _mm512_castps_si512(value));
      }
      word[i] = _mm512_cvttps_epi32(y);
      unsure |= _mm512_testn_epi32_mask(word[i], _mm512_set1_epi32(0xfff0));
    }
    if (HWY_UNLIKELY(unsure != 0)) return encode_generic(values, inverse, rounding, index, codes);
    const __m512i third = _mm512_load_si512(t.third_bytes);
    const __m512i low = _mm512_permutex2var_epi8(word[0], third, word[1]);
    const __m512i high = _mm512_permutex2var_epi8(word[2], third, word[3]);
    __m512i packed = _mm512_mask_blend_epi64(0xf0, low, high);
    if constexpr (!kSigned) {
      // Ranks of second moments start at 1; an exact zero alone is 0.
      const u64 keep = nonzero[0] | u64(nonzero[1]) << 16 | u64(nonzero[2]) << 32 | u64(nonzero[3]) << 48;
      packed = _mm512_maskz_mov_epi8(keep, packed);
    }
    _mm512_storeu_si512(codes, packed);
  }

  // The same tile by the generic code: the arbiter near boundaries. Out of line: it is rare.
  HWY_NOINLINE void encode_generic(const float* values, float inverse, const Rounding& rounding, u32 index,
                                   u8* codes) const {
    GenericCodec<Dynamic8, kSigned>::encode(values, inverse, rounding, index, codes);
  }

  HWY_INLINE static __m512 pick(const float (&table)[32], __m512i row) {
    return _mm512_permutex2var_ps(_mm512_load_ps(table), row, _mm512_load_ps(table + 16));
  }
};

#endif
