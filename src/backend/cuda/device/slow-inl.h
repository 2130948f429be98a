// The slow path of a step handles blocks with any types, strides and operands, one element after another. Included in
// the namespace of a .cu file after backend/kernels/step-inl.h and tiles-inl.h.

inline constexpr int kLanes = kBlock / 16;  // lanes per block

// A block on the slow path, with `count` elements (0 if there is no block).
struct SlowBlock {
  const DeviceItem* item;
  i64 block, element, index;
  int count;
};

// Lane j of 16 takes elements j, 16 + j, ... The first pass finds the absmax and the second stores; nothing that the
// first pass reads is written before the second has used it.
template <class R, class C>
LT_FN void slow_blocks(const SlowBlock& of, const typename C::Tables* tables) {
  constexpr int K = R::kStates;
  const DeviceItem& item = *of.item;
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  typename R::Args args;
  __builtin_memcpy(&args, item.args, sizeof args);
  const auto place = [&](int j) {
    return BlockElement{of.item, of.block, of.element + j, static_cast<u64>(of.index + j), static_cast<u32>(j), true};
  };
  // Returns the lane's i-th element. A lane stores both codes of a pair.
  const auto element = [&](int i) { return kHasPairs<C> ? i / 2 * 2 * kLanes + 2 * lane + i % 2 : i * kLanes + lane; };
  const auto next = [&](const BlockElement& at, float(&state)[K ? K : 1], float& p) {
    each<K>([&](auto k) { state[k] = decode_element<C, ((R::kSigned >> k) & 1) != 0>(tables, at, k); });
    p = load_weight(at);
    const float g = load(item.grad, at.element) * item.grad_scale;
    p = R::template step<float>(p, g, state, args);
    if constexpr (C::kScaled) each<K>([&](auto k) { state[k] = limited(state[k]); });
  };
  u32 most[K ? K : 1][kMostScales] = {};
  if constexpr (C::kScaled && K > 0) {
#pragma unroll 1
    for (int i = 0; element(i) < of.count; ++i) {
      const int j = element(i);
      float state[K], p;
      next(place(j), state, p);
      each<K>([&](auto k) {
        const u32 magnitude = bits(abs(state[k]));
        const u32 scale = scale_of_block<C, ((R::kSigned >> k) & 1) != 0>(static_cast<u32>(j));
        for (u32 n = 0; n < kMostScales; ++n) {
          const u32 counted = n == scale ? magnitude : 0u, before = most[k][n];
          most[k][n] = counted > before ? counted : before;
        }
      });
    }
    each<K>([&](auto k) {
      for (int s = 0; s < kScales<C, ((R::kSigned >> k) & 1) != 0>; ++s) most[k][s] = max_of_lanes(most[k][s], kLanes);
    });
  }
  float inverse[K ? K : 1][kMostScales] = {};
  each<K>([&](auto k) {
    for (int s = 0; s < kMostScales; ++s)
      inverse[k][s] = block_scale<C, ((R::kSigned >> k) & 1) != 0>(as_float(most[k][s])).inverse;
  });
#pragma unroll 1
  for (int i = 0; element(i) < of.count; ++i) {
    const int j = element(i);
    const BlockElement at = place(j);
    float state[K ? K : 1], p;
    next(at, state, p);
    store_weight(at, p);
    each<K>([&](auto k) {
      constexpr bool kSigned = ((R::kSigned >> k) & 1) != 0;
      // An index would force the array into memory.
      const float first = inverse[k][0], last = inverse[k][kMostScales - 1];
      store_state<C, kSigned>(tables, at, k, state[k], scale_of_block<C, kSigned>(at.lane) ? last : first);
    });
  }
  if constexpr (C::kScaled) {
    __syncwarp();
    if (lane == 0 && of.count)
      each<K>([&](auto k) {
        constexpr bool kSigned = ((R::kSigned >> k) & 1) != 0;
        constexpr int kOfBlock = kScales<C, kSigned>;
        for (int s = 0; s < kOfBlock; ++s)
          new_scales_of(item, k)[(of.block - item.first_block) * kOfBlock + s] =
              block_scale<C, kSigned>(as_float(most[k][s])).scale;
      });
  }
}
