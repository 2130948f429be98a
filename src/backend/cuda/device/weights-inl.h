// The weights of a lane in a step. Weights with a master are joined with their residuals and then rounded, as
// backend/kernels/master-inl.h does for single weights. Included in the namespace of a .cu file after tile-inl.h.

template <class T, int kBits>
LT_FN void join_lane(float (&x)[kLaneElements], const u32 (&word)[kLaneElements],
                     const u32 (&rest)[kLaneElements / 2]) {
  if constexpr (kBits == 0) {
    unpack<T>(x, word);
  } else {
    constexpr u32 kSign = 1u << (kBits - 1);
#pragma unroll
    for (int i = 0; i < kLaneElements; ++i) {
      const u32 code = rest[i * kBits / 32] >> i * kBits % 32 & (2 * kSign - 1);
      x[i] = Residual<T, kBits>::join(Packed<f16>::half(word, i), (code ^ kSign) - kSign);
    }
  }
}

template <class T, int kBits>
LT_FN void split_lane(u32 (&word)[kLaneElements], u32 (&rest)[kLaneElements / 2], const float (&x)[kLaneElements],
                      const LaneRandom& random) {
#pragma unroll
  for (int i = 0; i < kLaneElements; i += 4) {
    u32 half[4], left[4];
    if constexpr (kBits == 0) {
      u32 of[2];
      random.four(i, of);
#pragma unroll
      for (int n = 0; n < 4; ++n) half[n] = round_stochastic(x[i + n], n % 2 ? of[n / 2] >> 16 : of[n / 2], T{});
    } else {
#pragma unroll
      for (int n = 0; n < 4; ++n) Residual<T, kBits>::split(x[i + n], half[n], left[n]);
      if constexpr (kBits == 8) {
        rest[i / 4] = __byte_perm(__byte_perm(left[0], left[1], 0x40), __byte_perm(left[2], left[3], 0x40), 0x5410);
      } else {
        rest[i / 2] = __byte_perm(left[0], left[1], 0x5410);
        rest[i / 2 + 1] = __byte_perm(left[2], left[3], 0x5410);
      }
    }
    word[i / 2] = __byte_perm(half[0], half[1], 0x5410);
    word[i / 2 + 1] = __byte_perm(half[2], half[3], 0x5410);
  }
}

struct LaneWeights : ElementWords {
  LT_METHOD void load(const Tile& tile, const Form& form, const LaneAt& at) {
    load_elements(word, tile.param, form.param, form.wide, at, tile.left);
  }
  LT_METHOD void settle(const Tile& tile, const Form& form, const LaneAt& at) {
    settle_elements(word, tile.param, form.param, form.wide, at, tile.left);
  }
  LT_METHOD void get(const Tile& tile, const Form& form, const LaneAt& at, float (&x)[kLaneElements]) const {
    switch (form.master) {
#define LT_MASTER(number, name, bits)                                                                                 \
  case number: {                                                                                                      \
    u32 rest[kLaneElements / 2];                                                                                      \
    if constexpr (bits > 0) {                                                                                         \
      constexpr int kBytes = bits / 8;                                                                                \
      load_lane<bits / 2, kBytes>(rest, tile.residual, kBytes * at.element, form.wide, at.count, kBytes * tile.left); \
      settle_lane<bits / 2, kBytes>(rest, tile.residual, kBytes * at.element, form.wide, at.count,                    \
                                    kBytes * tile.left);                                                              \
    }                                                                                                                 \
    return form.param == 1 ? join_lane<bf16, bits>(x, word, rest) : join_lane<f16, bits>(x, word, rest);              \
  }
#include "portable/masters.def"
#undef LT_MASTER
    }
    unpack(x, word, form.param);
  }
  LT_METHOD void store(const Tile& tile, const Form& form, const LaneAt& at, const float (&x)[kLaneElements]) {
    switch (form.master) {
#define LT_MASTER(number, name, bits)                                                                               \
  case number: {                                                                                                    \
    u32 rest[kLaneElements / 2];                                                                                    \
    const LaneRandom random{at.index, tile.key[at.half][kMaxStates]};                                               \
    form.param == 1 ? split_lane<bf16, bits>(word, rest, x, random) : split_lane<f16, bits>(word, rest, x, random); \
    if constexpr (bits > 0)                                                                                         \
      store_lane<bits / 2, bits / 8>(rest, tile.residual + tile.write_offset, bits / 8 * at.element, form.wide,     \
                                     at.count);                                                                     \
    break;                                                                                                          \
  }
#include "portable/masters.def"
#undef LT_MASTER
      default:
        pack(word, x, form.param);
    }
    store_elements(word, tile.param, form.param, form.wide, at);
  }
};
