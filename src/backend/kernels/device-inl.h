// Shared by all kernels: the block on which a group works, and elements of any type and stride as floats. Include in a
// target's namespace after the portable kernels and the target's target-inl.h.

// A block, and this work-item's element of it.
struct BlockElement {
  const DeviceItem* item;
  i64 block;    // index in the parameter
  i64 element;  // index in the parameter
  u64 index;    // index in the whole tensor, of which this may be a shard; random bits depend on it
  u32 lane;     // index in the block
  bool inside;  // false past the end of a short block
};

// Returns the last item that starts at or before tile `at` and is not empty; starts[i]: the number of tiles before item
// i.
LT_FN i64 find_item(const i64* starts, i64 count, i64 at) {
  i64 low = 0, high = count;
  while (high - low > 1) {
    const i64 middle = low + (high - low) / 2;
    if (starts[middle] <= at)
      low = middle;
    else
      high = middle;
  }
  return low;
}

// Returns lane `lane` of an item's block, counted from the item's first.
LT_FN BlockElement element_in(const DeviceItem* item, i64 item_block, u32 lane) {
  const i64 block = item_block + item->first_block;
  const i64 per_row = (item->row_length + kBlock - 1) / kBlock;
  const i64 row = block / per_row, column = block % per_row * kBlock + lane;
  const i64 index = item->first_index + row * item->row_stride + column;
  return BlockElement{
      item, block, row * item->row_length + column, static_cast<u64>(index), lane, column < item->row_length};
}

// Calls work(place) for this group's blocks. The blocks of all items lie end to end, in tiles of kOfTile.
template <i64 kOfTile, class Fn>
LT_FN void for_each_block(const DeviceItem* items, const i64* starts, i64 count, i64 tiles, Fn&& work) {
  for (i64 b = group_id(); b < tiles * kOfTile; b += group_count()) {
    const i64 at = find_item(starts, count, b / kOfTile);
    const i64 block = (b / kOfTile - starts[at]) * kOfTile + b % kOfTile;
    // Only the last tile of an item may be short.
    if (kOfTile == 1 || block < items[at].blocks) work(element_in(items + at, block, id_in_group()));
  }
}

LT_FN i64 offset_of(const DeviceTensor& tensor, i64 element) {
  if (tensor.dim_count == 0) return element;
  i64 offset = 0;
  for (int d = tensor.dim_count - 1; d > 0; --d) {
    offset += element % tensor.dims[2 * d] * tensor.dims[2 * d + 1];
    element /= tensor.dims[2 * d];
  }
  return offset + element * tensor.dims[1];
}

// Element types are selected at run time, uniformly for a group: a kernel for each pair of types would be nine times
// the code, which a driver compiles in every process.
LT_FN float load(const DeviceTensor& tensor, i64 element) {
  const i64 at = offset_of(tensor, element);
  if (tensor.dtype == 0) return static_cast<const float*>(tensor.data)[at];
  const u32 half = static_cast<const u16*>(tensor.data)[at];
  return tensor.dtype == 1 ? bf16_decode(half) : f16_decode(half);
}

LT_FN void store(const DeviceTensor& tensor, i64 element, float x) {
  const i64 at = offset_of(tensor, element);
  if (tensor.dtype == 0)
    static_cast<float*>(tensor.data)[at] = x;
  else
    static_cast<u16*>(tensor.data)[at] = static_cast<u16>(tensor.dtype == 1 ? bf16_encode(x) : f16_encode(x));
}

// Loads code number i.
LT_FN u32 load_code(const u8* codes, i64 i) { return codes[i]; }
LT_FN u32 load_code(const bf16* codes, i64 i) { return codes[i].bits; }
LT_FN float load_code(const float* codes, i64 i) { return codes[i]; }
LT_FN u32 load_code(const u4* codes, i64 i) { return codes[i / 2].pair >> (4 * (i % 2)) & 15u; }
LT_FN void store_code(u32 x, u8* codes, i64 i) { codes[i] = static_cast<u8>(x); }
LT_FN void store_code(u32 x, bf16* codes, i64 i) { codes[i].bits = static_cast<u16>(x); }
LT_FN void store_code(float x, float* codes, i64 i) { codes[i] = x; }
// Reads and writes the whole byte, so a pair's two codes must be stored one after the other.
LT_FN void store_code(u32 x, u4* codes, i64 i) {
  const u32 shift = 4 * static_cast<u32>(i % 2);
  codes[i / 2].pair = static_cast<u8>((codes[i / 2].pair & (0xf0u >> shift)) | x << shift);
}

// Returns true if a check has found a non-finite gradient, so the item must not be touched.
LT_FN bool is_stopped(const DeviceItem& item) { return item.guard && *item.guard != kNoItem; }

// Where a state is read and where it is written.
template <class Code>
LT_FN const Code* codes_of(const DeviceItem& item, int k) {
  return static_cast<const Code*>(item.codes[k]);
}
template <class Code>
LT_FN Code* new_codes_of(const DeviceItem& item, int k) {
  return reinterpret_cast<Code*>(static_cast<u8*>(item.codes[k]) + item.write_offset);
}
LT_FN float* new_scales_of(const DeviceItem& item, int k) {
  return reinterpret_cast<float*>(reinterpret_cast<u8*>(item.scales[k]) + item.write_offset);
}

// Return the index of an element's scale in its block, and in the state.
template <class C, bool kSigned>
LT_FN u32 scale_of_block(u32 lane) {
  constexpr u32 kOfBlock = kScales<C, kSigned>;
  return kOfBlock > 1 ? lane * kOfBlock / kBlock : 0u;
}
template <class C, bool kSigned>
LT_FN i64 scale_of(const BlockElement& at) {
  return (at.block - at.item->first_block) * kScales<C, kSigned> + scale_of_block<C, kSigned>(at.lane);
}

template <class C, bool kSigned>
LT_FN float decode_element(const typename C::Tables* tables, const BlockElement& at, int k) {
  const i64 i = at.element - at.item->origin;
  const float x = C::template decode<kSigned>(*tables, load_code(codes_of<CodeOf<C, kSigned>>(*at.item, k), i));
  return C::kScaled ? x * at.item->scales[k][scale_of<C, kSigned>(at)] : x;
}

// Returns how state k is rounded for indices with this upper half.
LT_FN Rounding rounding_of(const DeviceItem& item, int k, u32 index_high) {
  if (((item.stochastic >> k) & 1) == 0) return Rounding{};
  return Rounding{true, key_at(RandomKey{item.key[k][0], item.key[k][1]}, index_high)};
}

// Stores a value as a code. inverse: from the block's absmax, if the codec has scales.
template <class C, bool kSigned>
LT_FN void store_state(const typename C::Tables* tables, const BlockElement& at, int k, float value, float inverse) {
  const DeviceItem& item = *at.item;
  const Rounding rounding = rounding_of(item, k, static_cast<u32>(at.index >> 32));
  store_code(encode_at<C, kSigned>(*tables, value, inverse, rounding, static_cast<u32>(at.index)),
             new_codes_of<CodeOf<C, kSigned>>(item, k), at.element - item.origin);
}

// An infinite state would make the scale infinite and the whole block NaN.
LT_FN float limited(float state) {
  constexpr float kLargest = 0x1.fffffep127f;
  return state > kLargest ? kLargest : state < -kLargest ? -kLargest : state;
}

// Returns the largest magnitude of the values that share this work-item's scale.
template <int kScalesOfBlock>
LT_FN float absmax_of_group(float value, u32 lane) {
  // Magnitudes sort like their bits.
  const u32 magnitude = bits(abs(value));
  if constexpr (kScalesOfBlock == 1) return as_float(max_of_group(magnitude));
  static_assert(kScalesOfBlock <= kMostScales);
  const bool is_first = lane < kBlock / 2;
  const u32 first = max_of_group(is_first ? magnitude : 0u), second = max_of_group(is_first ? 0u : magnitude);
  return as_float(is_first ? first : second);
}

// Stores a block's values as codes, and its scales. All work-items of the group call it, with value 0 outside the
// block.
template <class C, bool kSigned>
LT_FN void encode_block(const typename C::Tables* tables, const BlockElement& at, int k, float value) {
  constexpr int kOfBlock = kScales<C, kSigned>;
  float inverse = 0.f;
  if constexpr (kOfBlock > 0) {
    // When this returns, all work-items have read the old scale.
    const BlockScale of = block_scale<C, kSigned>(absmax_of_group<kOfBlock>(value, at.lane));
    inverse = of.inverse;
    if (at.lane % (kBlock / kOfBlock) == 0) new_scales_of(*at.item, k)[scale_of<C, kSigned>(at)] = of.scale;
  }
  if constexpr (kCodesOf<CodeOf<C, kSigned>> == 2) {
    if (at.inside && at.lane % 2 == 0) store_state<C, kSigned>(tables, at, k, value, inverse);
    meet_in_group();
    if (at.inside && at.lane % 2 != 0) store_state<C, kSigned>(tables, at, k, value, inverse);
  } else {
    if (at.inside) store_state<C, kSigned>(tables, at, k, value, inverse);
  }
}
