// Packs signs to bits and unpacks them, for an element type T. Include in a target's namespace after words-inl.h
// and portable/feedback.h.

// Words that are packed side by side.
inline constexpr int kAtOnce = 8;

// Packs kAtOnce words from w on, all of whose signs belong to the item. All members take the same branches, as a CPU
// needs for vectorization. kMarks: presence or the mark of non-finite values is wanted. Returns presence.
template <class T, bool kMarks>
LT_FN u32 pack_whole(const DeviceSignItem& item, const typename SignBits<T>::Raw* values, const Member& me, i64 w) {
  using Raw = typename SignBits<T>::Raw;
  const bool zero_is_plus = item.zero_is_plus != 0;
  u32 word[kAtOnce];
  bool present[kAtOnce / kWordsOfBlock] = {}, finite = true;
#pragma unroll
  for (int k = 0; k < kAtOnce; ++k) {
    const Raw x = (values + 32 * (w + k))[me.lane];
    word[k] = ballot(is_plus<T>(x, zero_is_plus));
    if constexpr (kMarks) present[k / kWordsOfBlock] |= !is_zero<T>(x), finite &= is_finite<T>(x);
  }
  u32 blocks = 0;
  if constexpr (kMarks) {
#pragma unroll
    for (int b = 0; b < kAtOnce / kWordsOfBlock; ++b) blocks |= static_cast<u32>(ballot(present[b]) != 0) << b;
    finite = ballot(!finite) == 0;
  }
  if (me.lane != 0) return blocks;
  if (item.big)
    for (int k = 0; k < kAtOnce; ++k) word[k] = mirrored(word[k]);
  u8* const to = item.bits + 4 * w;
  if ((reinterpret_cast<u64>(to) & 3u) == 0)
    for (int k = 0; k < kAtOnce; ++k) reinterpret_cast<u32*>(to)[k] = word[k];
  else
    for (int k = 0; k < kAtOnce; ++k) store_bytes(to + 4 * k, 4, word[k]);
  if constexpr (kMarks)
    if (item.nonfinite && !finite) *item.nonfinite = 1;
  return blocks;
}

// Packs kAtOnce words of which some signs belong to others, or to nobody.
template <class T>
LT_FN u32 pack_some(const DeviceSignItem& item, const typename SignBits<T>::Raw* values, const Member& me, i64 w) {
  const i64 end = item.first + item.count;
  u32 blocks = 0;
  bool finite = true;
  for (int k = 0; k < kAtOnce; ++k) {
    const i64 first = 32 * (w + k), at = first + me.lane;
    if (first + 32 <= item.first || first >= end) continue;
    const bool inside = at >= item.first && at < end;
    const typename SignBits<T>::Raw x = inside ? values[at] : 0;
    const u32 word = ballot(inside && is_plus<T>(x, item.zero_is_plus != 0));
    if (me.lane == 0)
      store_part(item.bits + 4 * (w + k), item.big ? mirrored(word) : word, item.first - first, end - first);
    blocks |= static_cast<u32>(ballot(!is_zero<T>(x)) != 0) << (k / kWordsOfBlock);
    finite &= ballot(!is_finite<T>(x)) == 0;
  }
  if (me.lane == 0 && item.nonfinite && !finite) *item.nonfinite = 1;
  return blocks;
}

template <class T>
LT_FN void pack(const DeviceSignItem& item) {
  constexpr i64 kUnit = kSignWordsAtOnce;
  const auto* const values = static_cast<const typename SignBits<T>::Raw*>(item.values) - item.first;
  const Member me = this_member();
  const i64 end = item.first + item.count;
  const bool marks = item.presence || item.nonfinite;
  for (i64 unit = item.first / (32 * kUnit) + me.mine; unit * 32 * kUnit < end; unit += me.all) {
    u32 blocks = 0;
#pragma unroll 1
    for (i64 k = 0; k < kUnit; k += kAtOnce) {
      const i64 w = kUnit * unit + k;
      const bool whole = 32 * w >= item.first && 32 * (w + kAtOnce) <= end;
      const u32 some = !whole  ? pack_some<T>(item, values, me, w)
                       : marks ? pack_whole<T, true>(item, values, me, w)
                               : pack_whole<T, false>(item, values, me, w);
      blocks |= some << (k / kWordsOfBlock);
    }
    if (me.lane == 0 && item.presence) item.presence[unit] = static_cast<u8>(blocks);
  }
}

// Returns a float as the bits of an element.
template <class T>
LT_FN typename SignBits<T>::Raw stored(float x) {
  if constexpr (std::is_same_v<T, float>) return bits(x);
  if constexpr (std::is_same_v<T, bf16>) return static_cast<u16>(bf16_encode(x));
  if constexpr (std::is_same_v<T, f16>) return static_cast<u16>(f16_encode(x));
}

// Lookups depend only on the word, so all its members make the same ones.
template <class T>
LT_FN void unpack(const DeviceSignItem& item) {
  using Raw = typename SignBits<T>::Raw;
  auto* const values = static_cast<Raw*>(item.values) - item.first;
  const Member me = this_member();
  const i64 end = item.first + item.count;
  for (i64 w = item.first / 32 + me.mine; 32 * w < end; w += me.all) {
    const i64 bytes = (end - 32 * w + 7) / 8;
    u32 word = load_bytes(item.bits + 4 * w, bytes), zeros = item.zeros ? load_bytes(item.zeros + 4 * w, bytes) : 0u;
    if (item.big) word = mirrored(word), zeros = mirrored(zeros);
    if (item.presence && !is_present(item.presence, w)) zeros = ~0u;
    Raw plus = sign_value<T>(true, false), minus = sign_value<T>(false, false);
    if (item.scales) {
      const float scale = bf16_decode(u32{item.scales[32 * w / kFeedbackBlock]});
      plus = stored<T>(scale), minus = stored<T>(-scale);
    }
    const Raw x = (zeros >> me.lane & 1u) != 0 ? Raw{0} : (word >> me.lane & 1u) != 0 ? plus : minus;
    if (32 * w >= item.first && 32 * w + 32 <= end)
      (values + 32 * w)[me.lane] = x;
    else if (const i64 at = 32 * w + me.lane; at >= item.first && at < end)
      values[at] = x;
  }
}
