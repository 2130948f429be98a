// dynamic8 with AVX2: decoding by eight scalar loads instead of the gather instruction, which costs more (13 % of an
// AdamW step in cache, Zen 4).
#if HWY_TARGET == HWY_AVX2

template <bool kSigned>
struct CpuCodec<Dynamic8, kSigned> : GenericCodec<Dynamic8, kSigned> {
  HWY_INLINE void decode(const u8* codes, float scale, vf (&out)[kTileVectors]) const {
    const float* t = this->tables.side[kSigned].value;
    for (int i = 0; i < kTileVectors; ++i) {
      u64 c;
      __builtin_memcpy(&c, codes + i * kLanes, 8);
      const __m128 low = _mm_setr_ps(t[c & 255], t[(c >> 8) & 255], t[(c >> 16) & 255], t[(c >> 24) & 255]);
      const __m128 high = _mm_setr_ps(t[(c >> 32) & 255], t[(c >> 40) & 255], t[(c >> 48) & 255], t[c >> 56]);
      out[i] = vf(decltype(vf::v){_mm256_set_m128(high, low)}) * vf(scale);
    }
  }
};

#endif
