// dynamic8 with AVX-512 without VBMI: unlike dynamic8_vbmi-inl.h, looks up 16-bit words in two planes.
#if HWY_TARGET == HWY_AVX3

template <bool kSigned>
struct Dynamic8Planes {
  static constexpr int kEntries = kSigned ? 128 : 256;
  // [plane][entry]: half `plane` of the entry's float. Signed: entry j is rank j + 1 (positive); unsigned: the code.
  alignas(64) u16 plane[2][kEntries];

  explicit Dynamic8Planes(const Dynamic8Table& map) {
    for (int j = 0; j < kEntries; ++j) {
      const u32 word = bits(map.value[kSigned ? 128 + j : j]);
      for (int k = 0; k < 2; ++k) plane[k][j] = static_cast<u16>(word >> (16 * k));
    }
  }

  HWY_INLINE void decode(const u8* codes, float scale, vf (&out)[kTileVectors]) const {
    for (int half = 0; half < 2; ++half) {
      // The interleaves below work within 128-bit lanes, so the double words of codes are reordered first.
      const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
      const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 32 * half));
      const __m512i c = _mm512_cvtepu8_epi16(_mm256_permutevar8x32_epi32(bytes, order));
      __m512i low, high;
      if constexpr (kSigned) {
        const __m512i zero = _mm512_set1_epi16(Dynamic8::kSignedZero);
        const __mmask32 negative = _mm512_cmplt_epi16_mask(c, zero), any = _mm512_cmpneq_epi16_mask(c, zero);
        // Negative codes count down from 126.
        const __m512i index = _mm512_mask_sub_epi16(c, negative, _mm512_set1_epi16(Dynamic8::kSignedZero - 1), c);
        low = look_up(0, index, any), high = look_up(1, index, any);
        high = _mm512_or_si512(high, _mm512_maskz_set1_epi16(negative, static_cast<short>(0x8000)));
      } else {
        low = look_up(0, c, ~0u), high = look_up(1, c, ~0u);
      }
      const vf s(scale);
      out[2 * half] = vf(vf::Vec{_mm512_castsi512_ps(_mm512_unpacklo_epi16(low, high))}) * s;
      out[2 * half + 1] = vf(vf::Vec{_mm512_castsi512_ps(_mm512_unpackhi_epi16(low, high))}) * s;
    }
  }

  // Returns byte 2 of each of 64 words.
  HWY_INLINE __m512i ranks(const __m512i (&words)[kTileVectors]) const {
    const __m512i low = _mm512_set1_epi16(0xff), order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    const auto two = [&](int i) { return _mm512_and_si512(halves(words[i], words[i + 1], 1), low); };
    return _mm512_permutexvar_epi64(order, _mm512_packus_epi16(two(0), two(2)));
  }

 private:
  // Returns zeros for lanes not set in `any`.
  HWY_INLINE __m512i look_up(int k, __m512i index, __mmask32 any) const {
    const auto quarter = [&](int i) {
      const u16* const p = plane[k] + 64 * i;
      return _mm512_maskz_permutex2var_epi16(any, _mm512_load_si512(p), index, _mm512_load_si512(p + 32));
    };
    const __mmask32 odd = _mm512_test_epi16_mask(index, _mm512_set1_epi16(64));
    const __m512i low = _mm512_mask_blend_epi16(odd, quarter(0), quarter(1));
    if constexpr (kSigned) {
      return low;
    } else {
      const __mmask32 upper = _mm512_test_epi16_mask(index, _mm512_set1_epi16(128));
      return _mm512_mask_blend_epi16(upper, low, _mm512_mask_blend_epi16(odd, quarter(2), quarter(3)));
    }
  }
};

#endif
