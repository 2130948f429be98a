// The driver of norms: decode -> terms -> sums of squares. 32 members, the lanes of the sums, take a block of 256
// elements at a time. Unrolled loops would triple the drivers' compile time. Include in a target's namespace after
// step-inl.h.

static_assert(kNormLanes == 32 && kBlock % kNormLanes == 0);
inline constexpr int kNormRounds = kBlock / kNormLanes;

// The number of states that a rule's terms read.
template <class R>
inline constexpr int kNormStates = R::kNormsReadState ? R::kStates : 0;

LT_FN u32 max_of_members(u32 x) {
  for (u32 distance = kNormLanes / 2; distance > 0; distance /= 2) {
    const u32 other = from_lane_xor(x, distance);
    x = x > other ? x : other;
  }
  return x;
}
// Adds in the order of sum_lanes, in which the two lanes of an addition may be swapped.
LT_FN float sum_of_members(float x) {
  for (u32 distance = kNormLanes / 2; distance > 0; distance /= 2) x = x + from_lane_xor(x, distance);
  return x;
}

// Returns the norms of an item's block, counted from the item's first. All members must call it.
template <class R, class C>
LT_FN BlockNorms norm_block(const DeviceItem& item, i64 block, const typename C::Tables* tables, u32 lane) {
  constexpr int K = kNormStates<R>;
  const BlockElement first = element_in(&item, block, 0);
  const i64 left = item.row_length - first.element % item.row_length;
  typename R::Args args;
  __builtin_memcpy(&args, item.args, sizeof args);
  float values[2][kNormRounds];
  u32 largest[2] = {0, 0};
#pragma unroll 1
  for (int j = 0; j < kNormRounds; ++j) {
    const i64 within = kNormLanes * j + lane;
    float x[2] = {0.f, 0.f}, state[K ? K : 1] = {};
    if (within < left) {
      const BlockElement at{
          &item, first.block, first.element + within, first.index + static_cast<u64>(within), static_cast<u32>(within),
          true};
      each<K>([&](auto k) { state[k] = decode_element<C, ((R::kSigned >> k) & 1) != 0>(tables, at, k); });
      R::template terms<float>(load_weight(at), load(item.grad, at.element) * item.grad_scale, state, args, x);
    }
    for (int t = 0; t < 2; ++t) {
      values[t][j] = x[t];
      if (const u32 magnitude = bits(abs(x[t])); magnitude > largest[t]) largest[t] = magnitude;
    }
  }
  BlockNorms norms;
#pragma unroll 1
  for (int t = 0; t < 2; ++t) {
    const u32 exponent = norm_exponent(max_of_members(largest[t]));
    const float inverse = norm_inverse(exponent);
    float sum = 0.f;
#pragma unroll 1
    for (int j = 0; j < kNormRounds; ++j) {
      const float x = values[t][j] * inverse;
      sum = sum + x * x;
    }
    norms.sum[t] = sum_of_members(sum);
    norms.unit[t] = norm_unit(exponent);
  }
  return norms;
}

template <class R, class C>
LT_FN void norm_blocks(const DeviceItem* items, const i64* starts, i64 count, i64 blocks,
                       const typename C::Tables* tables, BlockNorms* out) {
  const Member me = this_member();
  for (i64 b = me.mine; b < blocks; b += me.all) {
    const i64 of = find_item(starts, count, b);
    const BlockNorms norms = norm_block<R, C>(items[of], b - starts[of], tables, me.lane);
    if (me.lane == 0) out[b] = norms;
  }
}
