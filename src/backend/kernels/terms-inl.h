// The driver of sums over all parameters: decode -> terms -> exact sums. 32 members take a block of 256 elements at a
// time. Include in a target's namespace after step-inl.h and sums-inl.h.

// Adds a block's terms, counted from the item's first block. All members must call it. Unrolled loops would triple the
// drivers' compile time.
template <class R, class C>
LT_FN void add_block(const DeviceItem& item, i64 block, const typename C::Tables* tables, u32 lane,
                     MemberSum<1> (&sums)[kTermSums]) {
  constexpr int K = R::kStates;
  const BlockElement first = element_in(&item, block, 0);
  const i64 left = item.row_length - first.element % item.row_length;
  typename R::Args args;
  __builtin_memcpy(&args, item.args, sizeof args);
  u32 magnitudes[kTermSums][kSumRounds];
#pragma unroll 1
  for (int j = 0; j < kSumRounds; ++j) {
    const i64 within = 32 * j + lane;
    float x[2] = {0.f, 0.f}, state[K] = {};
    if (within < left) {
      const BlockElement at{
          &item, first.block, first.element + within, first.index + static_cast<u64>(within), static_cast<u32>(within),
          true};
      each<K>([&](auto k) {
        if constexpr ((R::kSumsRead >> k & 1) != 0)
          state[k] = decode_element<C, ((R::kSigned >> k) & 1) != 0>(tables, at, k);
      });
      R::template terms<float>(0.f, load(item.grad, at.element) * item.grad_scale, state, args, x);
    }
    const u32 of_first = bits(abs(x[0]));
    magnitudes[0][j] = x[0] < 0.f ? of_first : 0u;
    magnitudes[1][j] = x[0] < 0.f ? 0u : of_first;
    magnitudes[2][j] = bits(abs(x[1]));
  }
#pragma unroll 1
  for (int i = 0; i < kTermSums; ++i) sums[i].take(magnitudes[i]);
}

// Adds the terms of all items to kTermSums parts.
template <class R, class C>
LT_FN void sum_terms(const DeviceItem* items, const i64* starts, i64 count, i64 tiles, const typename C::Tables* tables,
                     SumParts* parts) {
  const Member me = this_member();
  MemberSum<1> sums[kTermSums];
  for (int i = 0; i < kTermSums; ++i) sums[i] = {parts[i].limbs[me.mine % SumParts::kParts], me.lane};
  for (i64 t = me.mine; t < tiles; t += me.all) {
    const i64 at = find_item(starts, count, t);
    const i64 begin = (t - starts[at]) * kBlocksOfTile, left = items[at].blocks - begin;
    for (i64 b = 0; b < kBlocksOfTile && b < left; ++b) add_block<R, C>(items[at], begin + b, tables, me.lane, sums);
  }
  for (int i = 0; i < kTermSums; ++i) sums[i].finish(&parts[i].least);
}
