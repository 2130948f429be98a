// Error feedback, in one kernel for all codecs, whose specific parts are small. Unrolled loops would triple the
// drivers' compile time. Include in a target's namespace after words-inl.h and portable/feedback.h.

// 32 members process two blocks at a time with 16 work-items each, which are the lanes of the sum. A work-item has
// values kFeedbackLanes * j + lane of its block.
static_assert(kFeedbackLanes == kSumLanes && kFeedbackBlock % kBlock == 0);
inline constexpr int kRounds = kFeedbackBlock / kSumLanes;
inline constexpr int kRoundsOfScale = kBlock / kSumLanes;

struct FeedbackLane {
  u32 half, lane;  // one of the members' two blocks, and the lane of its sum
  i64 base;        // number of values before the block
  i64 count;       // elements of the block; 0 if there is none
};
LT_FN i64 within(const FeedbackLane& at, int j) { return kSumLanes * j + at.lane; }
LT_FN bool inside(const FeedbackLane& at, int j) { return within(at, j) < at.count; }

// Adds the lanes of a block in the order of sum_lanes.
LT_FN float sum_of_block(const FeedbackLane& at, float sum) {
  for (int half = kSumLanes / 2; half > 0; half /= 2) sum = sum + from_lane_above(sum, static_cast<u32>(half));
  return from_lane(sum, at.half * kSumLanes);
}
LT_FN u32 max_of_block(u32 x) {
  for (u32 half = kSumLanes / 2; half > 0; half /= 2) {
    const u32 other = from_lane_xor(x, half);
    x = x > other ? x : other;
  }
  return x;
}

// Loads the x of error feedback, with zeros after the last value.
LT_FN void load_values(const DeviceFeedback& item, const FeedbackLane& at, float (&x)[kRounds]) {
#pragma unroll 1
  for (int j = 0; j < kRounds; ++j)
    x[j] = inside(at, j) ? load(item.values, at.base + within(at, j)) * item.value_scale : 0.f;
}
LT_FN void load_mean(const DeviceFeedback& item, const u8* const* ballots, const u16* const* scales, const u32* weights,
                     const FeedbackLane& at, float (&x)[kRounds]) {
#pragma unroll 1
  for (int j = 0; j < kRounds; ++j) x[j] = 0.f;
  const i64 first = item.first + at.base;
  for (int v = 0; v < item.voters; ++v) {
    if (weights[v] == 0 || at.count == 0) continue;
    const float weighted = feedback_weighted_scale(weights[v], scales[v][first / kFeedbackBlock]);
    // Two rounds make a word of signs.
#pragma unroll 1
    for (int j = 0; j < kRounds; j += 2) {
      const i64 left = at.count - kSumLanes * j;
      const u32 word = left > 0 ? load_bytes(ballots[v] + (first + kSumLanes * j) / 8, (left + 7) / 8) : 0u;
      x[j] = feedback_term(x[j], (word >> at.lane & 1u) != 0, weighted);
      x[j + 1] = feedback_term(x[j + 1], (word >> (kSumLanes + at.lane) & 1u) != 0, weighted);
    }
  }
  const float inverse = feedback_inverse(item.sum);
#pragma unroll 1
  for (int j = 0; j < kRounds; ++j) x[j] = inside(at, j) ? x[j] * inverse : 0.f;
}

template <class C>
LT_FN void add_residual(const DeviceFeedback& item, const typename C::Tables* tables, const FeedbackLane& at,
                        float (&x)[kRounds]) {
#pragma unroll 1
  for (int j = 0; j < kRounds; ++j) {
    if (!inside(at, j)) continue;
    const i64 i = at.base + within(at, j);
    const float r = C::template decode<true>(*tables, load_code(static_cast<const typename C::Code*>(item.codes), i));
    x[j] = x[j] + (C::kScaled ? r * item.scales[i / kBlock] : r);
  }
}

template <class C>
LT_FN void keep_residual(const DeviceFeedback& item, const typename C::Tables* tables, const FeedbackLane& at,
                         const float (&r)[kRounds]) {
#pragma unroll 1
  for (int begin = 0; begin < kRounds; begin += kRoundsOfScale) {
    float inverse = 0.f;
    if constexpr (C::kScaled) {
      u32 most = 0;
#pragma unroll 1
      for (int j = begin; j < begin + kRoundsOfScale; ++j)
        if (const u32 x = bits(abs(r[j])); x > most) most = x;
      const float absmax = as_float(max_of_block(most));
      const BlockScale of = block_scale<C, true>(absmax);
      inverse = of.inverse;
      if (at.lane == 0 && kSumLanes * begin < at.count) item.scales[(at.base + kSumLanes * begin) / kBlock] = of.scale;
    }
#pragma unroll 1
    for (int j = begin; j < begin + kRoundsOfScale; ++j) {
      if (!inside(at, j)) continue;
      const i64 i = at.base + within(at, j);
      store_code(C::template encode_with<true>(*tables, r[j], inverse, false, 0u),
                 static_cast<typename C::Code*>(item.codes), i);
    }
  }
}

// Calls work(codec) with the codec of this number, which must not have 4 bits, because residuals cannot.
template <class Fn>
LT_FN void with_codec(int number, Fn&& work) {
  switch (number) {
#define LT_CODEC(number, name, C)           \
  case number:                              \
    if constexpr (!kHasPairs<C>) work(C()); \
    break;
#include "portable/codecs.def"
#undef LT_CODEC
  }
}

LT_FN void feedback_block(const DeviceFeedback& item, const u8* const* ballots, const u16* const* ballot_scales,
                          const u32* weights, const void* tables, const FeedbackLane& at) {
  float c[kRounds];
  if (item.values.data)
    load_values(item, at, c);
  else
    load_mean(item, ballots, ballot_scales, weights, at, c);
  if (item.codes)
    with_codec(item.codec, [&](auto codec) {
      using C = decltype(codec);
      add_residual<C>(item, static_cast<const typename C::Tables*>(tables), at, c);
    });

  float lane_sum = 0.f;
#pragma unroll 1
  for (int j = 0; j < kRounds; ++j) lane_sum = lane_sum + abs(c[j]);
  const float sum = sum_of_block(at, lane_sum);
  const u16 stored = at.count ? feedback_scale(sum, static_cast<int>(at.count)) : u16{0};
  const float scale = bf16_decode(u32{stored});
  const i64 first = item.first + at.base;
  if (at.lane == 0 && at.count) item.bit_scales[first / kFeedbackBlock] = stored;

#pragma unroll 1
  for (int j = 0; j < kRounds; ++j) {
    const bool plus = inside(at, j) && is_plus<float>(bits(c[j]));
    const u32 word = ballot(plus) >> (at.half * kSumLanes);
    const i64 left = at.count - kSumLanes * j;
    u8* const to = item.bits + (first + kSumLanes * j) / 8;
    if (at.lane == 0 && left > 0) to[0] = static_cast<u8>(word);
    if (at.lane == 0 && left > 8) to[1] = static_cast<u8>(word >> 8);
    c[j] = inside(at, j) ? feedback_residual(c[j], plus, scale) : 0.f;
  }
  if (item.codes)
    with_codec(item.codec, [&](auto codec) {
      using C = decltype(codec);
      keep_residual<C>(item, static_cast<const typename C::Tables*>(tables), at, c);
    });
}

LT_FN void feedback_blocks(const DeviceFeedback* feedback, const u8* const* ballots, const u16* const* ballot_scales,
                           const u32* weights, const void* tables) {
  const DeviceFeedback item = *feedback;
  const Member me = this_member();
  const i64 blocks = (item.count + kFeedbackBlock - 1) / kFeedbackBlock;
  for (i64 two = me.mine; 2 * two < blocks; two += me.all) {
    FeedbackLane at{me.lane / kSumLanes, me.lane % kSumLanes, 0, 0};
    at.base = (2 * two + at.half) * kFeedbackBlock;
    const i64 left = item.count - at.base;
    at.count = left < 0 ? 0 : left < kFeedbackBlock ? left : kFeedbackBlock;
    feedback_block(item, ballots, ballot_scales, weights, tables, at);
  }
}
