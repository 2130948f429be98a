// The check for non-finite gradients. Included in the namespace of a .cu file after tiles-inl.h.

// Returns the largest magnitude of these elements as bits of their type, which have the same order as integers. Called
// by all lanes of a warp; each lane returns the largest magnitude of its share.
template <class T>
LT_FN u32 max_of_words(const u8* data, i64 begin, i64 end) {
  using Raw = std::conditional_t<sizeof(T) == 4, u32, u16>;
  constexpr u32 kMagnitude = sizeof(T) == 4 ? 0x7fffffffu : 0x7fffu;
  constexpr i64 kAtOnce = 16 / sizeof(T);
  const auto* const values = reinterpret_cast<const Raw*>(data);
  const i64 lane = threadIdx.x % 32;
  u32 most = 0;
  const auto see = [&](u32 magnitude) { most = magnitude > most ? magnitude : most; };
  // First read up to an aligned address, then units of 16 bytes, then the rest.
  const i64 to_aligned = static_cast<i64>((0u - reinterpret_cast<u64>(values + begin)) % 16 / sizeof(T));
  const i64 head = to_aligned < end - begin ? begin + to_aligned : end, tail = head + (end - head) / kAtOnce * kAtOnce;
  for (i64 i = begin + lane; i < head; i += 32) see(values[i] & kMagnitude);
#pragma unroll 2
  for (i64 i = head + lane * kAtOnce; i < tail; i += 32 * kAtOnce) {
    const uint4 four = __ldg(reinterpret_cast<const uint4*>(values + i));
    for (const u32 word : {four.x, four.y, four.z, four.w}) {
      see(word & kMagnitude);
      if constexpr (sizeof(T) == 2) see(word >> 16 & kMagnitude);
    }
  }
  for (i64 i = tail + lane; i < end; i += 32) see(values[i] & kMagnitude);
  return most;
}

// Checks a warp's tile, with the same result as find_nonfinite.
LT_FN void find_nonfinite_in_tile(const DeviceItem& item, i64 tile, u32* first) {
  const i64 begin = tile * cuda_kernels::kTileBlocks, there = item.blocks - begin;
  Cursor from, to;  // rows are consecutive
  from.find(item, begin);
  to.find(item, begin + (there < cuda_kernels::kTileBlocks ? there : cuda_kernels::kTileBlocks));
  u32 most = 0;  // the bits of a float
  if (item.grad.dim_count == 0) {
    const u8* const data = static_cast<const u8*>(item.grad.data);
    switch (item.grad.dtype) {
      case 0:
        most = max_of_words<float>(data, from.element, to.element);
        break;
      case 1:
        most = bits(bf16_decode(max_of_words<bf16>(data, from.element, to.element)));
        break;
      default:
        most = bits(f16_decode(max_of_words<f16>(data, from.element, to.element)));
    }
  } else {
    for (i64 i = from.element + threadIdx.x % 32; i < to.element; i += 32) {
      const u32 x = bits(abs(load(item.grad, i)));
      most = x > most ? x : most;
    }
  }
  if (most >= item.limit_bits) atomic_min(first, item.index);
}

LT_FN void find_nonfinite_in_tiles(const DeviceItem* items, const i64* starts, i64 count, i64 tiles, u32* first) {
  for (i64 t = item_id() / 32; t < tiles; t += item_count() / 32) {
    const i64 at = find_item_by_warp(starts, count, t);
    find_nonfinite_in_tile(items[at], t - starts[at], first);
  }
}
