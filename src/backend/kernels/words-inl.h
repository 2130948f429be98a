// Signs in 32-bit words, at any byte alignment. Include in a target's namespace after the portable kernels.

// Loads up to 4 bytes; the rest of the word is 0.
LT_FN u32 load_bytes(const u8* from, i64 bytes) {
  u32 word = 0;
  if (bytes >= 4)
    __builtin_memcpy(&word, from, 4);
  else
    for (int byte = 0; byte < bytes; ++byte) word |= static_cast<u32>(from[byte]) << (8 * byte);
  return word;
}
LT_FN void store_bytes(u8* to, i64 bytes, u32 word) {
  if (bytes >= 4)
    __builtin_memcpy(to, &word, 4);
  else
    for (int byte = 0; byte < bytes; ++byte) to[byte] = static_cast<u8>(word >> (8 * byte));
}

// Stores the bytes of `word` that hold signs in [begin, end). Positions count from the start of the word: `begin` may
// be negative, and `end` may be past the word. Bits below `begin` in its byte are kept.
LT_FN void store_part(u8* to, u32 word, i64 begin, i64 end) {
  for (int byte = 0; byte < 4; ++byte) {
    const i64 low = 8 * byte;
    if (low + 8 <= begin || low >= end) continue;
    const u32 keep = begin > low ? (1u << (begin - low)) - 1u : 0u;
    to[byte] = static_cast<u8>((to[byte] & keep) | (word >> low));
  }
}

// Returns a mask of the first `signs` (at most all) of a word.
LT_FN u32 inside_of(i64 signs) { return signs < 32 ? (1u << signs) - 1u : ~0u; }

LT_FN bool bit_at(const u8* bits, i64 i) { return (bits[i / 8] >> (i % 8) & 1) != 0; }

LT_FN bool is_present(const u8* presence, i64 word) { return bit_at(presence, word / kWordsOfBlock); }
