// Codec conversions, and the check for non-finite gradients. Include in a target's namespace after device-inl.h.

template <class C, bool kSigned>
LT_FN void decode_blocks(const DeviceItem* item, i64 blocks, const void* tables) {
  const i64 start = 0;
  for_each_block<1>(item, &start, 1, blocks, [&](const BlockElement& at) {
    if (at.inside)
      static_cast<float*>(at.item->param.data)[at.element - at.item->origin] =
          decode_element<C, kSigned>(static_cast<const typename C::Tables*>(tables), at, 0);
  });
}

template <class C, bool kSigned>
LT_FN void encode_blocks(const DeviceItem* item, i64 blocks, const void* tables) {
  const i64 start = 0;
  for_each_block<1>(item, &start, 1, blocks, [&](const BlockElement& at) {
    const float x = at.inside ? static_cast<const float*>(at.item->param.data)[at.element - at.item->origin] : 0.f;
    encode_block<C, kSigned>(static_cast<const typename C::Tables*>(tables), at, 0, x);
  });
}

// Sets *first to the smallest index of an item with a gradient at or above its limit (NaN included), if there is one.
LT_FN void find_nonfinite(const DeviceItem* items, const i64* starts, i64 count, i64 tiles, u32* first) {
  for_each_block<kBlocksOfTile>(items, starts, count, tiles, [&](const BlockElement& at) {
    if (at.inside && bits(abs(load(at.item->grad, at.element))) >= at.item->limit_bits)
      atomic_min(first, at.item->index);
  });
}
