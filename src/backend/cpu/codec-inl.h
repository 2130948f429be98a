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
