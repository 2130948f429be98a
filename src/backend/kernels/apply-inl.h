// Moves parameters by signs. Include in a target's namespace after words-inl.h.

// 32 members handle the 32 elements of a word of signs, and read the same words.
LT_FN void apply_blocks(const DeviceItem* items, const i64* starts, i64 count, i64 blocks) {
  const u32 lane = this_member().lane;
  for_each_block<1>(items, starts, count, blocks, [&](const BlockElement& at) {
    const DeviceItem& item = *at.item;
    const i64 first = at.element - lane, w = (item.signs.first + first) / 32, left = item.row_length - first;
    if (left <= 0 || (item.signs.presence && !is_present(item.signs.presence, w))) return;
    ApplyArgs args;
    __builtin_memcpy(&args, item.args, sizeof args);
    const u32 word = load_bytes(item.signs.bits + 4 * w, (left + 7) / 8);
    const u32 zeros = item.signs.zeros ? load_bytes(item.signs.zeros + 4 * w, (left + 7) / 8) : 0u;
    const float sign = (zeros >> lane & 1u) != 0 ? 0.f : (word >> lane & 1u) != 0 ? 1.f : -1.f;
    if (!at.inside) return;
    const float p = load(item.param, at.element);
    store(item.param, at.element, move(p, p * args.decay + sign * args.lr));
  });
}
