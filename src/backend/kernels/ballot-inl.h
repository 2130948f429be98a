// Makes signs in step_blocks instead of a step. Include in a target's namespace after words-inl.h.

// Sets the signs from `first` on that are set in `word`, in memory that others write concurrently. Touches only the
// aligned 4-byte words that hold them.
LT_FN void set_signs(u8* bits, i64 first, u32 word) {
  const u64 at = reinterpret_cast<u64>(bits) + static_cast<u64>(first / 8);
  const u64 set = static_cast<u64>(word) << (8 * (at & 3) + static_cast<u64>(first % 8));
  u32* const to = reinterpret_cast<u32*>(at & ~u64{3});
  if (const u32 low = static_cast<u32>(set)) atomic_or(to, low);
  if (const u32 high = static_cast<u32>(set >> 32)) atomic_or(to + 1, high);
}

// Stands for a parameter of float32 zeros, whatever the type of the absent one, and keeps only its signs. A sub-group
// has 32 consecutive elements.
struct Ballot {
  template <class StepFn>
  LT_FN void step(const BlockElement& at, StepFn&& next) {
    constexpr i64 kSignBlock = 32 * kWordsOfBlock;
    const DeviceSigns& to = at.item->signs;
    const u32 x = at.inside ? bits(next(0.f)) : 0u;
    const u32 plus = ballot(at.inside && is_plus<float>(x, to.zero_is_plus != 0));
    const u32 present = ballot(!is_zero<float>(x));
    if (this_member().lane != 0) return;
    const i64 first = to.first + at.element, to_next_block = kSignBlock - first % kSignBlock;
    set_signs(to.bits, first, plus);
    if (!to.presence || !present) return;
    const u32 here = inside_of(to_next_block);
    set_signs(to.presence, first / kSignBlock, ((present & here) != 0) | static_cast<u32>((present & ~here) != 0) << 1);
  }
};
