// Codecs on tiles of 64 values: the generic form, vector by vector through the dialect. An instruction set may
// specialize CpuCodec for one codec (dynamic8_avx2-inl.h, dynamic8_vbmi-inl.h); equality with the generic form is
// tested over dense sweeps.

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

// random_16 of 64 elements.
HWY_INLINE void random_tile(u32 index, const RandomKey& key, vu (&out)[kTileVectors]) {
#if HWY_TARGET != HWY_SCALAR
  if (HWY_LIKELY(index % 2 == 0)) {  // a hash for two neighbours: the words of half a vector make a whole one
    const hn::Half<hn::Repartition<uint16_t, decltype(kU)>> half;
    for (int i = 0; i < kTileVectors; i += 2) {
      const vu both = random_bits(iota((index >> 1) + static_cast<u32>(i / 2 * kLanes)), key);
      const auto words = hn::BitCast(hn::Repartition<uint16_t, decltype(kU)>(), both.v);
      out[i] = vu(hn::PromoteTo(kU, hn::LowerHalf(half, words)));
      out[i + 1] = vu(hn::PromoteTo(kU, hn::UpperHalf(half, words)));
    }
    return;
  }
#endif
  for (int i = 0; i < kTileVectors; ++i) out[i] = random_16(iota(index + static_cast<u32>(i * kLanes)), key);
}

template <class C, bool kSigned>
struct GenericCodec {
  using Code = typename C::Code;
  const typename C::Tables& tables = codec_tables<C>();

  HWY_INLINE void decode(const Code* codes, float scale, vf (&out)[kTileVectors]) const {
    for (int i = 0; i < kTileVectors; ++i) {
      const vf x = C::template decode<kSigned>(tables, load_code(codes + i * kLanes));
      out[i] = C::kScaled ? x * vf(scale) : x;
    }
  }

  HWY_INLINE void encode(const float* values, float inverse, const Rounding& rounding, u32 index, Code* codes) const {
    if constexpr (requires(vf x, vu r) { C::template encode_with<kSigned>(tables, x, x, true, r); }) {
      if (rounding.stochastic) {
        vu random[kTileVectors];
        random_tile(index, rounding.key, random);
        for (int i = 0; i < kTileVectors; ++i)
          store_code(C::template encode_with<kSigned>(tables, load(values + i * kLanes), vf(inverse), true, random[i]),
                     codes + i * kLanes);
        return;
      }
    }
    for (int i = 0; i < kTileVectors; ++i) {
      const vu position = iota(index + static_cast<u32>(i * kLanes));
      store_code(C::template encode<kSigned>(tables, load(values + i * kLanes), vf(inverse), rounding, position),
                 codes + i * kLanes);
    }
  }

  // What the padding of a short block is filled with: decodes to zero.
  static Code zero_code() {
    if constexpr (requires { C::kSignedZero; })
      return kSigned ? static_cast<Code>(C::kSignedZero) : Code{};
    else
      return Code{};
  }
};

// What the drivers use.
template <class C, bool kSigned>
struct CpuCodec : GenericCodec<C, kSigned> {};
