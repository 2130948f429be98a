// The portable vocabulary for one instruction set: vf (floats), vu (u32), vm (mask), and loads and stores of the
// element types and codes, kLanes values at a time. With HWY_SCALAR a "vector" is a plain float, and the same driver is
// the reference. Include this inside the target's namespace, after Highway and before portable/portable.h is used.

#if HWY_TARGET == HWY_SCALAR

using vf = float;
using vu = u32;
inline constexpr int kLanes = 1;

LT_FN vf load(const float* p) { return *p; }
LT_FN void store(vf x, float* p) { *p = x; }
LT_FN vu load_code(const u8* p) { return *p; }
LT_FN vu load_code(const bf16* p) { return p->bits; }
LT_FN vu load_code(const f16* p) { return p->bits; }
LT_FN void store_code(vu x, u8* p) { *p = static_cast<u8>(x); }
LT_FN void store_code(vu x, bf16* p) { p->bits = static_cast<u16>(x); }
LT_FN void store_code(vu x, f16* p) { p->bits = static_cast<u16>(x); }
LT_FN vu iota(u32 first) { return first; }
LT_FN float reduce_max(vf x) { return x; }
LT_FN u32 reduce_max(vu x) { return x; }
LT_FN vu max(vu a, vu b) { return a > b ? a : b; }

#else

namespace hn = hwy::HWY_NAMESPACE;
inline constexpr hn::ScalableTag<float> kF;
inline constexpr hn::ScalableTag<uint32_t> kU;
inline constexpr hn::ScalableTag<int32_t> kI;
inline constexpr int kLanes = HWY_MAX_BYTES / 4;

struct vm {
  hn::Mask<decltype(kF)> m;
};
struct vu {
  using Vec = hn::Vec<decltype(kU)>;
  Vec v;
  vu() = default;
  HWY_INLINE explicit vu(Vec x) : v(x) {}
  HWY_INLINE explicit vu(u32 x) : v(hn::Set(kU, x)) {}
};
struct vf {
  using Vec = hn::Vec<decltype(kF)>;
  Vec v;
  vf() = default;
  HWY_INLINE explicit vf(Vec x) : v(x) {}
  HWY_INLINE vf(float x) : v(hn::Set(kF, x)) {}  // implicit, because rules write vector * float
};

LT_FN vf operator+(vf a, vf b) { return vf(hn::Add(a.v, b.v)); }
LT_FN vf operator-(vf a, vf b) { return vf(hn::Sub(a.v, b.v)); }
LT_FN vf operator*(vf a, vf b) { return vf(hn::Mul(a.v, b.v)); }
LT_FN vf operator/(vf a, vf b) { return vf(hn::Div(a.v, b.v)); }
LT_FN vm operator<(vf a, vf b) { return vm{hn::Lt(a.v, b.v)}; }
LT_FN vm operator>(vf a, vf b) { return vm{hn::Gt(a.v, b.v)}; }
LT_FN vm operator==(vf a, vf b) { return vm{hn::Eq(a.v, b.v)}; }
LT_FN vf sqrt(vf x) { return vf(hn::Sqrt(x.v)); }
LT_FN vf abs(vf x) { return vf(hn::Abs(x.v)); }
LT_FN vf max(vf a, vf b) { return vf(hn::Max(a.v, b.v)); }
LT_FN vf min(vf a, vf b) { return vf(hn::Min(a.v, b.v)); }
LT_FN vf select(vm m, vf a, vf b) { return vf(hn::IfThenElse(m.m, a.v, b.v)); }

LT_FN vu operator+(vu a, vu b) { return vu(hn::Add(a.v, b.v)); }
LT_FN vu operator-(vu a, vu b) { return vu(hn::Sub(a.v, b.v)); }
LT_FN vu operator*(vu a, vu b) { return vu(hn::Mul(a.v, b.v)); }
LT_FN vu operator&(vu a, vu b) { return vu(hn::And(a.v, b.v)); }
LT_FN vu operator|(vu a, vu b) { return vu(hn::Or(a.v, b.v)); }
LT_FN vu operator^(vu a, vu b) { return vu(hn::Xor(a.v, b.v)); }
LT_FN vu operator<<(vu a, int n) { return vu(hn::ShiftLeftSame(a.v, n)); }
LT_FN vu operator>>(vu a, int n) { return vu(hn::ShiftRightSame(a.v, n)); }
LT_FN vm operator==(vu a, vu b) { return vm{hn::RebindMask(kF, hn::Eq(a.v, b.v))}; }
LT_FN vu max(vu a, vu b) { return vu(hn::Max(a.v, b.v)); }
LT_FN vu select(vm m, vu a, vu b) { return vu(hn::IfThenElse(hn::RebindMask(kU, m.m), a.v, b.v)); }

LT_FN vu bits(vf x) { return vu(hn::BitCast(kU, x.v)); }
LT_FN vu truncate(vf x) { return vu(hn::BitCast(kU, hn::ConvertTo(kI, x.v))); }
LT_FN vf as_float(vu x) { return vf(hn::BitCast(kF, x.v)); }
LT_FN vf gather(const float* t, vu i) { return vf(hn::GatherIndex(kF, t, hn::BitCast(kI, i.v))); }
#if HWY_TARGET == HWY_AVX2
// Eight scalar loads cost less than the gather instruction (Zen 4).
LT_FN vu gather(const u32* t, vu i) {
  const __m128i low = _mm256_castsi256_si128(i.v.raw), high = _mm256_extracti128_si256(i.v.raw, 1);
  const auto a = static_cast<u64>(_mm_cvtsi128_si64(low)), b = static_cast<u64>(_mm_extract_epi64(low, 1));
  const auto c = static_cast<u64>(_mm_cvtsi128_si64(high)), d = static_cast<u64>(_mm_extract_epi64(high, 1));
  const auto at = [t](u64 k) { return static_cast<int>(t[static_cast<u32>(k)]); };
  return vu(vu::Vec{_mm256_setr_epi32(at(a), at(a >> 32), at(b), at(b >> 32), at(c), at(c >> 32), at(d), at(d >> 32))});
}
#else
LT_FN vu gather(const u32* t, vu i) { return vu(hn::GatherIndex(kU, t, hn::BitCast(kI, i.v))); }
#endif

#if HWY_TARGET == HWY_AVX2
LT_FN vu pick(const u32 (&t)[32], vu i) { return gather(t, i & vu(31u)); }
// Looks up eight entries at a time by the lowest 3 bits; the fourth bit, as a sign, selects one of two results.
LT_FN vf pick(const float (&t)[16], vu i) {
  const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(t), i.v.raw);
  const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(t + 8), i.v.raw);
  return vf(vf::Vec{_mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(i.v.raw, 28)))});
}
#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
LT_FN vu pick(const u32 (&t)[32], vu i) {
  return vu(vu::Vec{_mm512_permutex2var_epi32(_mm512_loadu_si512(t), i.v.raw, _mm512_loadu_si512(t + 16))});
}
LT_FN vf pick(const float (&t)[16], vu i) { return vf(vf::Vec{_mm512_permutexvar_ps(i.v.raw, _mm512_loadu_ps(t))}); }
#else
LT_FN vu pick(const u32 (&t)[32], vu i) { return gather(t, i & vu(31u)); }
LT_FN vf pick(const float (&t)[16], vu i) { return gather(t, i & vu(15u)); }
#endif

LT_FN vf load(const float* p) { return vf(hn::LoadU(kF, p)); }
LT_FN void store(vf x, float* p) { hn::StoreU(x.v, kF, p); }
LT_FN vu load_u16(const void* p) {
  return vu(hn::PromoteTo(kU, hn::LoadU(hn::Rebind<uint16_t, decltype(kU)>(), static_cast<const uint16_t*>(p))));
}
LT_FN void store_u16(vu x, void* p) {
  const hn::Rebind<uint16_t, decltype(kI)> d;
  hn::StoreU(hn::DemoteTo(d, hn::BitCast(kI, x.v)), d, static_cast<uint16_t*>(p));
}
LT_FN vu load_code(const u8* p) { return vu(hn::PromoteTo(kU, hn::LoadU(hn::Rebind<uint8_t, decltype(kU)>(), p))); }
LT_FN vu load_code(const bf16* p) { return load_u16(p); }
LT_FN vu load_code(const f16* p) { return load_u16(p); }
LT_FN void store_code(vu x, u8* p) {
  const hn::Rebind<uint8_t, decltype(kI)> d;
  hn::StoreU(hn::DemoteTo(d, hn::BitCast(kI, x.v)), d, p);
}
LT_FN void store_code(vu x, bf16* p) { store_u16(x, p); }
LT_FN void store_code(vu x, f16* p) { store_u16(x, p); }
LT_FN vu iota(u32 first) { return vu(first) + vu(hn::Iota(kU, 0)); }  // the second term is a constant
LT_FN float reduce_max(vf x) { return hn::GetLane(hn::MaxOfLanes(kF, x.v)); }
LT_FN u32 reduce_max(vu x) { return hn::GetLane(hn::MaxOfLanes(kU, x.v)); }

#endif

// The 16-bit element types, with the portable bit arithmetic, which gives the same bits on every instruction set.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
// One permutation replaces a conversion and a shift. (Intel: that of bytes takes one operation, that of words two.)
LT_FN vf load(const bf16* p) {
  const __m512i words = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#if HWY_TARGET == HWY_AVX3_DL
  alignas(64) static constexpr u32 kUpper[16] = {0x01000000, 0x03020000, 0x05040000, 0x07060000, 0x09080000, 0x0b0a0000,
                                                 0x0d0c0000, 0x0f0e0000, 0x11100000, 0x13120000, 0x15140000, 0x17160000,
                                                 0x19180000, 0x1b1a0000, 0x1d1c0000, 0x1f1e0000};
  return vf(vf::Vec{
      _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi8(0xccccccccccccccccull, _mm512_load_si512(kUpper), words))});
#else
  alignas(64) static constexpr u16 kTwice[32] = {0, 0, 1, 1, 2,  2,  3,  3,  4,  4,  5,  5,  6,  6,  7,  7,
                                                 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15};
  return vf(
      vf::Vec{_mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, _mm512_load_si512(kTwice), words))});
#endif
}
#else
LT_FN vf load(const bf16* p) { return bf16_decode(load_code(p)); }
#endif
LT_FN vf load(const f16* p) { return f16_decode(load_code(p)); }
LT_FN void store(vf x, bf16* p) { store_code(bf16_encode(x), p); }
LT_FN void store(vf x, f16* p) { store_code(f16_encode(x), p); }
// Loads and stores codes in the codec's form: float for fp32, their bits in a vu for others.
LT_FN vf load_code(const float* p) { return load(p); }
LT_FN void store_code(vf x, float* p) { store(x, p); }

// Returns max(a, |b|) for an a that is 0 or more, and a if b is a NaN: a block's scale must hold for its other values,
// because tables are looked up by values divided by it.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
LT_FN vf max_abs(vf a, vf b) { return vf(vf::Vec{_mm512_range_ps(a.v.raw, b.v.raw, 0b1011)}); }
#elif HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SCALAR
LT_FN vf max_abs(vf a, vf b) { return max(abs(b), a); }  // if one is a NaN, the second
#else
LT_FN vf max_abs(vf a, vf b) { return select(a < abs(b), abs(b), a); }
#endif

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
// Returns the lower (odd = 0) or upper (odd = 1) halves of 32 values.
LT_FN __m512i halves(__m512i a, __m512i b, int odd) {
  alignas(64) static constexpr u16 kHalves[2][32] = {{0,  2,  4,  6,  8,  10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
                                                      32, 34, 36, 38, 40, 42, 44, 46, 48, 50, 52, 54, 56, 58, 60, 62},
                                                     {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                      33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63}};
  return _mm512_permutex2var_epi16(a, _mm512_load_si512(kHalves[odd]), b);
}
#endif

// Stores consecutive vectors.
template <int n, class P>
LT_FN void store_tile(const vf (&x)[n], P* p) {
  for (int i = 0; i < n; ++i) store(x[i], p + i * kLanes);
}
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
// Takes two vectors at a time, whose upper halves form one vector of words and whose lower halves form another. A word
// is rounded up if its lower half, plus one if the word is odd, is above the middle.
template <int n>
LT_FN void store_tile(const vf (&x)[n], bf16* p) {
  const __m512i one = _mm512_set1_epi16(1);
  for (int i = 0; i < n; i += 2) {
    const __m512i a = _mm512_castps_si512(x[i].v.raw), b = _mm512_castps_si512(x[i + 1].v.raw);
    const __m512i upper = halves(a, b, 1), lower = halves(a, b, 0);
    const __mmask32 up = _mm512_cmpgt_epu16_mask(_mm512_adds_epu16(lower, _mm512_and_si512(upper, one)),
                                                 _mm512_set1_epi16(static_cast<short>(0x8000)));
    __m512i rounded = _mm512_mask_add_epi16(upper, up, upper, one);
    // A carry could turn a NaN into infinity or -0.
    if (__builtin_expect(_mm512_cmp_ps_mask(x[i].v.raw, x[i + 1].v.raw, _CMP_UNORD_Q) != 0, 0))
      rounded = halves(bf16_round(x[i]).v.raw, bf16_round(x[i + 1]).v.raw, 1);
    _mm512_storeu_si512(p + i * kLanes, rounded);
  }
}
#endif
