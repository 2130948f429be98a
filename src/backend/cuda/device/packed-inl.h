// 16 elements of a lane: words as memory has them, to and from floats. Included in the namespace of a .cu file after
// the portable kernels.

inline constexpr int kLaneElements = 16;

// Where a lane works in this round.
struct LaneAt {
  int block;    // counted from the tile's first
  int element;  // the first of its 16, counted from the tile's first
  u32 index;    // lower bits of the first one's index
  int half;     // of the warp, whose block it is
  int count;    // of its elements; without any it reads those of others, or nothing
  bool there;   // whether the half has a block of its own
};

// Chosen at run time, the same for a warp: branches cost less than kernels of their own for each pair of types,
// which a driver would have to load.
struct Form {
  int param, grad;  // element types
  int master;       // of the weights, 0 without
  bool wide;        // lanes have 16 elements or none, and accesses of 16 bytes are aligned

  LT_METHOD bool operator==(const Form& o) const {
    return param == o.param && grad == o.grad && master == o.master && wide == o.wide;
  }
};
// The most common one has branches of its own, in which there are no others.
LT_FN Form common_form() { return {1, 1, 0, true}; }

template <int kBytes>
using Unit = std::conditional_t<kBytes == 4, u32, std::conditional_t<kBytes == 2, u16, u8>>;

// kWords words. Wide: 16 bytes at a time, or 8, without hints: a lane's neighbour takes the other half of its sectors,
// which lines that leave the caches first no longer had (float32 state on an H100: 0.90 of a copy, and 0.82 with
// hints). Else so many units of kUnit bytes; the others are 0.
template <int kWords, int kUnit>
LT_FN void load_lane(u32* word, const u8* from, bool wide, int units) {
  constexpr int kOfWord = 4 / kUnit;
  if (wide) {
    if constexpr (kWords == 2) {
      const uint2 two = *reinterpret_cast<const uint2*>(from);
      word[0] = two.x, word[1] = two.y;
    } else {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        const uint4 four = reinterpret_cast<const uint4*>(from)[i / 4];
        word[i] = four.x, word[i + 1] = four.y, word[i + 2] = four.z, word[i + 3] = four.w;
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      word[i] = 0;
#pragma unroll
      for (int u = 0; u < kOfWord; ++u)
        if (i * kOfWord + u < units)
          word[i] |= static_cast<u32>(reinterpret_cast<const Unit<kUnit>*>(from)[i * kOfWord + u]) << 8 * kUnit * u;
    }
  }
}
template <int kWords, int kUnit>
LT_FN void store_lane(const u32* word, u8* to, bool wide, int units) {
  constexpr int kOfWord = 4 / kUnit;
  if (wide) {
    if (units == 0) return;
    if constexpr (kWords == 2) {
      *reinterpret_cast<uint2*>(to) = make_uint2(word[0], word[1]);
    } else {
#pragma unroll
      for (int i = 0; i < kWords; i += 4)
        reinterpret_cast<uint4*>(to)[i / 4] = make_uint4(word[i], word[i + 1], word[i + 2], word[i + 3]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kWords * kOfWord; ++i)
      if (i < units)
        reinterpret_cast<Unit<kUnit>*>(to)[i] =
            static_cast<Unit<kUnit>>(word[i / kOfWord] >> 8 * kUnit * (i % kOfWord));
  }
}

// Elements of a type as they lie in words.
template <class T>
struct Packed;

template <>
struct Packed<float> {
  LT_FN float get(const u32* word, int i) { return as_float(word[i]); }
  LT_FN void set_two(u32* word, int i, float low, float high) { word[i] = bits(low), word[i + 1] = bits(high); }
};

// Hardware rounds to nearest even, denormals included, as the portable kernels does; what becomes of a NaN is a NaN.
template <>
struct Packed<bf16> {
  LT_FN float get(const u32* word, int i) { return as_float(i % 2 ? word[i / 2] & 0xffff0000u : word[i / 2] << 16); }
  LT_FN void set_two(u32* word, int i, float low, float high) {
#ifdef __CUDA_ARCH__
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word[i / 2]) : "f"(high), "f"(low));
#else
    word[i / 2] = bf16_encode(low) | bf16_encode(high) << 16;
#endif
  }
};

template <>
struct Packed<f16> {
  LT_FN float get(const u32* word, int i) { return f16_decode(half(word, i)); }
  LT_FN void set_two(u32* word, int i, float low, float high) {
#ifdef __CUDA_ARCH__
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word[i / 2]) : "f"(high), "f"(low));
#else
    word[i / 2] = f16_encode(low) | f16_encode(high) << 16;
#endif
  }
  LT_FN u32 half(const u32* word, int i) { return i % 2 ? word[i / 2] >> 16 : word[i / 2] & 0xffffu; }
};

// Room for elements of any type, of which not all fill it. (The stand-in's compiler would warn of what is left.)
struct ElementWords {
#ifdef __CUDA_ARCH__
  u32 word[kLaneElements];
#else
  u32 word[kLaneElements] = {};
#endif
};

LT_FN void load_elements(u32 (&word)[kLaneElements], const u8* base, int dtype, bool wide, const LaneAt& at) {
  if (dtype == 0)
    load_lane<kLaneElements, 4>(word, base + 4 * i64{at.element}, wide, at.count);
  else
    load_lane<kLaneElements / 2, 2>(word, base + 2 * i64{at.element}, wide, at.count);
}
LT_FN void store_elements(const u32 (&word)[kLaneElements], u8* base, int dtype, bool wide, const LaneAt& at) {
  if (dtype == 0)
    store_lane<kLaneElements, 4>(word, base + 4 * i64{at.element}, wide, at.count);
  else
    store_lane<kLaneElements / 2, 2>(word, base + 2 * i64{at.element}, wide, at.count);
}

template <class T>
LT_FN void unpack(float (&x)[kLaneElements], const u32 (&word)[kLaneElements]) {
#pragma unroll
  for (int i = 0; i < kLaneElements; ++i) x[i] = Packed<T>::get(word, i);
}
template <class T>
LT_FN void pack(u32 (&word)[kLaneElements], const float (&x)[kLaneElements]) {
#pragma unroll
  for (int i = 0; i < kLaneElements; i += 2) Packed<T>::set_two(word, i, x[i], x[i + 1]);
}
LT_FN void unpack(float (&x)[kLaneElements], const u32 (&word)[kLaneElements], int dtype) {
  if (dtype == 1)
    unpack<bf16>(x, word);
  else if (dtype == 0)
    unpack<float>(x, word);
  else
    unpack<f16>(x, word);
}
LT_FN void pack(u32 (&word)[kLaneElements], const float (&x)[kLaneElements], int dtype) {
  if (dtype == 1)
    pack<bf16>(word, x);
  else if (dtype == 0)
    pack<float>(word, x);
  else
    pack<f16>(word, x);
}

// random_16 of elements 4 * number to 4 * number + 3, two to a word, the first in the lower half.
LT_FN void random_four(u32 number, RandomKey key, u32 (&random)[2]) {
  const u32 half = random_half(number, key), hash = random_rest(half, key);
  random[0] = __byte_perm(half, hash, 0x5342), random[1] = __byte_perm(half, hash, 0x7362);
}

// Random bits of a lane's elements, whose first index is a multiple of 4.
struct LaneRandom {
  u32 first;
  RandomKey key;

  // For four elements from number i on.
  LT_METHOD void four(int i, u32 (&random)[2]) const { random_four(first / 4 + static_cast<u32>(i) / 4, key, random); }
};
