// Codecs on tiles of 64 values: the generic form, which runs the portable kernels vector by vector. An instruction set
// may specialize CpuCodec for a codec (codecs-inl.h lists the specializations); tests compare each specialization with
// the generic form over dense sweeps.

inline constexpr int kTile = 64;
inline constexpr int kTileVectors = kTile / kLanes;

template <class C>
const typename C::Tables& codec_tables() {
  static const typename C::Tables tables = [] {
    typename C::Tables t;
    if constexpr (requires { C::make_tables(t); }) C::make_tables(t);
    return t;
  }();
  return tables;
}

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
// Returns shuffle indices that repeat the upper two bytes of each 32-bit word, because two elements use them.
HWY_INLINE __m128i upper_bytes_twice() { return _mm_setr_epi8(2, 3, 2, 3, 6, 7, 6, 7, 10, 11, 10, 11, 14, 15, 14, 15); }
#endif

// How a state is rounded, with the parts of the key that the hash of its elements needs.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
struct TileRounding : Rounding {
  __m512i lanes, mix, factor0, factor1;

  TileRounding(bool is_stochastic, RandomKey of)
      : Rounding{is_stochastic, of},
        lanes((iota(0) * vu(kRandomIncrement) + vu(of.k0)).v.raw),
        mix(_mm512_set1_epi32(static_cast<int>(of.k1 ^ (of.k1 >> kRandomShift1)))),
        factor0(_mm512_set1_epi32(kRandomFactor0)),
        factor1(_mm512_set1_epi32(kRandomFactor1)) {
    // Kept in memory at no cost; otherwise compilers rebuild each constant from a general register at each use.
    asm("" : "+m"(factor0), "+m"(factor1));
  }
};

// random_16 of 64 elements, in order; index is a multiple of 4.
struct RandomShorts {
  __m512i words[2];

  // Computes random_half and random_bits of 16 numbers. `lanes` holds (first + i) * increment + k0 without first *
  // increment. Shifting x ^ k1 shifts x and k1, so (x ^ k1) ^ ((x ^ k1) >> n) has three operands: x, x >> n, and k1 ^
  // (k1 >> n), which is `mix`.
  HWY_INLINE RandomShorts(u32 index, const TileRounding& of) {
    constexpr int kXor3 = 0x96;
    __m512i x = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(index / 4 * kRandomIncrement)), of.lanes);
    const __m512i half = _mm512_mullo_epi32(_mm512_xor_si512(x, _mm512_srli_epi32(x, kRandomShift0)), of.factor0);
    x = _mm512_ternarylogic_epi32(half, _mm512_srli_epi32(half, kRandomShift1), of.mix, kXor3);
    x = _mm512_mullo_epi32(x, of.factor1);
    const __m512i hash = _mm512_xor_si512(x, _mm512_srli_epi32(x, kRandomShift2));
#if HWY_TARGET == HWY_AVX3_DL
    for (int i = 0; i < 2; ++i) words[i] = _mm512_permutex2var_epi8(half, _mm512_load_si512(kBytes.of[i]), hash);
#else
    // Interleaves work within 128-bit lanes.
    const __m512i bytes = _mm512_shuffle_epi8(half, _mm512_broadcast_i32x4(upper_bytes_twice()));
    const __m512i low = _mm512_unpacklo_epi8(bytes, hash), high = _mm512_unpackhi_epi8(bytes, hash);
    words[0] = _mm512_permutex2var_epi64(low, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), high);
    words[1] = _mm512_permutex2var_epi64(low, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), high);
#endif
  }

  // Returns one half for every element, which rounds to nearest.
  HWY_INLINE static RandomShorts one_half() {
    RandomShorts all;
    all.words[0] = all.words[1] = _mm512_set1_epi16(static_cast<short>(0x8000));
    return all;
  }

  // Returns a mask of the 64 values that carry out of their lower 16 bits when these random numbers are added.
  HWY_INLINE __mmask64 carries(const __m512i (&value)[4]) const {
    __mmask32 carry[2];
    for (int i = 0; i < 2; ++i) {
      const __m512i fraction = halves(value[2 * i], value[2 * i + 1], 0);
      carry[i] = _mm512_cmplt_epu16_mask(_mm512_add_epi16(fraction, words[i]), words[i]);
    }
    return _mm512_kunpackd(carry[1], carry[0]);
  }

 private:
  RandomShorts() = default;
  struct Bytes {
    alignas(64) u8 of[2][64];
  };
  // Element e takes byte 2 or 3 of its half hash and, above it, its byte of the hash.
  static constexpr Bytes kBytes = [] {
    Bytes bytes{};
    for (int e = 0; e < 64; ++e) {
      bytes.of[e / 32][2 * (e % 32)] = static_cast<u8>(e / 4 * 4 + 2 + e % 2);
      bytes.of[e / 32][2 * (e % 32) + 1] = static_cast<u8>(64 + e);
    }
    return bytes;
  }();
};
#else
struct TileRounding : Rounding {
  TileRounding(bool is_stochastic, RandomKey of) : Rounding{is_stochastic, of} {}
};
#endif

// Computes random_16 of 64 elements.
HWY_INLINE void random_tile(u32 index, const TileRounding& of, vu (&out)[kTileVectors]) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  if (HWY_LIKELY(index % 4 == 0)) {
    const RandomShorts random(index, of);
    for (int i = 0; i < kTileVectors; i += 2) {
      out[i] = vu(vu::Vec{_mm512_cvtepu16_epi32(_mm512_castsi512_si256(random.words[i / 2]))});
      out[i + 1] = vu(vu::Vec{_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(random.words[i / 2], 1))});
    }
    return;
  }
#elif HWY_TARGET == HWY_AVX2
  if (HWY_LIKELY(index % 4 == 0)) {
    const __m256i upper = _mm256_broadcastsi128_si256(upper_bytes_twice());
    // Interleaves work within 128-bit lanes. Four elements share a hash, so each lane holds every second hash.
    const vu lanes(vu::Vec{_mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7)});
    const __m256i zero = _mm256_setzero_si256();
    for (int i = 0; i < kTileVectors; i += 4) {
      const vu number = vu(index / 4 + static_cast<u32>(i / 4 * kLanes)) + lanes, half = random_half(number, of.key);
      const __m256i low = _mm256_shuffle_epi8(half.v.raw, upper), high = random_rest(half, of.key).v.raw;
      const __m256i first = _mm256_unpacklo_epi8(low, high), second = _mm256_unpackhi_epi8(low, high);
      out[i] = vu(vu::Vec{_mm256_unpacklo_epi16(first, zero)});
      out[i + 1] = vu(vu::Vec{_mm256_unpackhi_epi16(first, zero)});
      out[i + 2] = vu(vu::Vec{_mm256_unpacklo_epi16(second, zero)});
      out[i + 3] = vu(vu::Vec{_mm256_unpackhi_epi16(second, zero)});
    }
    return;
  }
#endif
  for (int i = 0; i < kTileVectors; ++i) out[i] = random_16(iota(index + static_cast<u32>(i * kLanes)), of.key);
}

// Unpacks bytes with two codes each, or one.
HWY_INLINE void unpack(const u4* codes, u8 (&out)[kTile]) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  const __m512i words = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
  const __m512i both = _mm512_or_si512(words, _mm512_slli_epi16(words, 4));
  _mm512_storeu_si512(out, _mm512_and_si512(both, _mm512_set1_epi8(15)));
#else
  for (int i = 0; i < kTile / 2; ++i) {
    out[2 * i] = codes[i].pair & 15;
    out[2 * i + 1] = codes[i].pair >> 4;
  }
#endif
}
HWY_INLINE void pack(const u8 (&from)[kTile], u4* codes) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  const __m512i words = _mm512_maddubs_epi16(_mm512_loadu_si512(from), _mm512_set1_epi16(0x1001));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), _mm512_cvtepi16_epi8(words));
#else
  for (int i = 0; i < kTile / 2; ++i) codes[i].pair = static_cast<u8>(from[2 * i] | from[2 * i + 1] << 4);
#endif
}

template <class C, bool kSigned>
struct GenericCodec {
  using Code = CodeOf<C, kSigned>;
  const typename C::Tables& tables = codec_tables<C>();

  HWY_INLINE void decode(const Code* codes, float scale, vf (&out)[kTileVectors]) const {
    if constexpr (std::is_same_v<Code, u4>) {
      alignas(64) u8 bytes[kTile];
      unpack(codes, bytes);
      decode_each(bytes, scale, out);
    } else {
      decode_each(codes, scale, out);
    }
  }

  HWY_INLINE void encode(const float* values, float inverse, const TileRounding& rounding, u32 index,
                         Code* codes) const {
    if constexpr (std::is_same_v<Code, u4>) {
      alignas(64) u8 bytes[kTile];
      encode_each(values, inverse, rounding, index, bytes);
      pack(bytes, codes);
    } else {
      encode_each(values, inverse, rounding, index, codes);
    }
  }

  // Returns the code that pads a short block: it decodes to zero, or to at most the least value of the block.
  static Code zero_code() {
    if constexpr (requires { C::kSignedZero; }) {
      if constexpr (kSigned && std::is_same_v<Code, u4>) return Code{C::kSignedZero | C::kSignedZero << 4};
      if constexpr (kSigned && !std::is_same_v<Code, u4>) return static_cast<Code>(C::kSignedZero);
    }
    return Code{};
  }

 private:
  template <class Each>
  HWY_INLINE void decode_each(const Each* codes, float scale, vf (&out)[kTileVectors]) const {
    for (int i = 0; i < kTileVectors; ++i) {
      const vf x = C::template decode<kSigned>(tables, load_code(codes + i * kLanes));
      out[i] = C::kScaled ? x * vf(scale) : x;
    }
  }

  template <class Each>
  HWY_INLINE void encode_each(const float* values, float inverse, const TileRounding& rounding, u32 index,
                              Each* codes) const {
    if (C::kError > 0 && rounding.stochastic) {
      vu random[kTileVectors];
      random_tile(index, rounding, random);
      for (int i = 0; i < kTileVectors; ++i)
        store_code(C::template encode_with<kSigned>(tables, load(values + i * kLanes), vf(inverse), true, random[i]),
                   codes + i * kLanes);
    } else {
      for (int i = 0; i < kTileVectors; ++i)
        store_code(C::template encode_with<kSigned>(tables, load(values + i * kLanes), vf(inverse), false, vu(0u)),
                   codes + i * kLanes);
    }
  }
};

// Encoding in two halves: all states of a tile run the first half before any runs the second. Each half is a dependency
// chain, so the processor fills the waits of one chain with the other. A codec with two halves calls its intermediate
// result Begun; its second half, end(), returns the elements left to encode_exactly().
template <class Codec>
inline constexpr bool kHasHalves = requires {
  typename Codec::Begun;
};

// Whether a codec decodes single vectors, with decode_vector(): it keeps the processor's load units busy, so each
// vector is decoded beside the divisions of others.
template <class Codec>
inline constexpr bool kDecodesVectors = requires(const Codec& codec) {
  codec.decode_vector(nullptr, 0.f);
};

struct NotBegun {};
template <class Codec>
HWY_INLINE auto begin_encoding(const Codec& codec, const float* values, float inverse) {
  if constexpr (kHasHalves<Codec>)
    return codec.begin(values, inverse);
  else
    return NotBegun{};
}

// The form that drivers use. A codec that stores one kind of state like another codec uses that codec's form.
template <class C, bool kSigned>
struct CpuCodec : GenericCodec<C, kSigned> {};
template <class C, bool kSigned>
requires requires { typename C::template Half<kSigned>::Codec; }
struct CpuCodec<C, kSigned> : CpuCodec<typename C::template Half<kSigned>::Codec, kSigned> {};
