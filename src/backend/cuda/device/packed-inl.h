// 16 elements in registers, as memory has them, and to and from floats. Included in the namespace of a .cu file after
// the portable kernels.

inline constexpr int kLaneElements = 16;

// 16 bytes at a time, marked to leave the caches first: a step sees each once.
template <int kWords>
LT_FN void load_words(u32 (&word)[kWords], const void* from) {
#pragma unroll
  for (int i = 0; i < kWords; i += 4) {
    const uint4 four = __ldcs(static_cast<const uint4*>(from) + i / 4);
    word[i] = four.x, word[i + 1] = four.y, word[i + 2] = four.z, word[i + 3] = four.w;
  }
}
template <int kWords>
LT_FN void store_words(const u32 (&word)[kWords], void* to) {
#pragma unroll
  for (int i = 0; i < kWords; i += 4)
    __stcs(static_cast<uint4*>(to) + i / 4, make_uint4(word[i], word[i + 1], word[i + 2], word[i + 3]));
}

template <class T>
struct Packed;

template <>
struct Packed<float> {
  static constexpr int kDtype = 0;
  u32 word[kLaneElements];
  LT_METHOD float get(int i) const { return as_float(word[i]); }
  LT_METHOD void set_two(int i, float low, float high) { word[i] = bits(low), word[i + 1] = bits(high); }
};

// Hardware rounds to nearest even, denormals included, as the portable kernels does; what becomes of a NaN is a NaN.
template <>
struct Packed<bf16> {
  static constexpr int kDtype = 1;
  u32 word[kLaneElements / 2];
  LT_METHOD float get(int i) const { return as_float(i % 2 ? word[i / 2] & 0xffff0000u : word[i / 2] << 16); }
  LT_METHOD void set_two(int i, float low, float high) {
#ifdef __CUDA_ARCH__
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word[i / 2]) : "f"(high), "f"(low));
#else
    word[i / 2] = bf16_encode(low) | bf16_encode(high) << 16;
#endif
  }
};

template <>
struct Packed<f16> {
  static constexpr int kDtype = 2;
  u32 word[kLaneElements / 2];
  LT_METHOD float get(int i) const {
    const u32 half = i % 2 ? word[i / 2] >> 16 : word[i / 2] & 0xffffu;
#ifdef __CUDA_ARCH__
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(static_cast<u16>(half)));
    return x;
#else
    return f16_decode(half);
#endif
  }
  LT_METHOD void set_two(int i, float low, float high) {
#ifdef __CUDA_ARCH__
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word[i / 2]) : "f"(high), "f"(low));
#else
    word[i / 2] = f16_encode(low) | f16_encode(high) << 16;
#endif
  }
};
