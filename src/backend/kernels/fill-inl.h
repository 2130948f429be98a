// Fills memory with a pattern. Include in a target's namespace after its target-inl.h.

// Sets `bytes` bytes from `to` on. `word` repeats a one-byte pattern four times; with other patterns `to` must be
// aligned, and words are whole.
LT_FN void fill_bytes(u8* to, u32 word, i64 bytes) {
  const i64 item = item_id(), items = item_count();
  const i64 to_aligned = static_cast<i64>(-reinterpret_cast<u64>(to) & 3u);
  const i64 head = to_aligned < bytes ? to_aligned : bytes;
  const i64 words = (bytes - head) / 4, tail = (bytes - head) % 4;
  u32* const body = reinterpret_cast<u32*>(to + head);
  for (i64 w = item; w < words; w += items) body[w] = word;
  if (item < head) to[item] = static_cast<u8>(word);
  if (item < tail) to[bytes - 1 - item] = static_cast<u8>(word);
}
