// Counter-based random bits for stochastic rounding: a hash of (seed, step, global element index), so that the result
// depends on nothing else (threads, tiers, shards, order). Two multiplications; one was shown not to be enough: pairs
// at lags 16 and 256 correlate. Element indices are those of the whole parameter, whose rows count as padded to whole
// blocks (so that a block begins at a multiple of its size); bits above 32 are folded into the key.

struct RandomKey {
  u32 k0, k1;
};

LT_FN u64 splitmix64(u64 x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// index_high: the element index >> 32, constant over 2^32 neighbours.
LT_FN RandomKey random_key(u64 seed, u64 step, u64 parameter, u64 index_high) {
  const u64 k = splitmix64(splitmix64(splitmix64(seed) ^ step) ^ (parameter + (index_high << 40)));
  return RandomKey{static_cast<u32>(k), static_cast<u32>(k >> 32)};
}

// Keys of parameter number n are those of the streams n * kStreamsOfParameter + k: k is the number of a state, or
// kWeightStream for the parameter itself.
inline constexpr u64 kStreamsOfParameter = 16, kWeightStream = 15;

// Constants of the hash: the multiplier of the index, then factors and shifts that mix it.
inline constexpr u32 kRandomIncrement = 0x9e3779b9u;
inline constexpr u32 kRandomFactor0 = 0x2c1b3c6du, kRandomFactor1 = 0x297a2d39u;
inline constexpr int kRandomShift0 = 15, kRandomShift1 = 13, kRandomShift2 = 16;

// 32 random bits for number `index`.
template <class U>
LT_FN U random_bits(U index, RandomKey key) {
  U x = index * U(kRandomIncrement) + U(key.k0);
  x = (x ^ (x >> kRandomShift0)) * U(kRandomFactor0);
  x = x ^ U(key.k1);
  x = (x ^ (x >> kRandomShift1)) * U(kRandomFactor1);
  return x ^ (x >> kRandomShift2);
}

// The key of the elements whose indices have these bits above 32.
LT_FN RandomKey key_at(RandomKey key, u32 index_high) {
  if (index_high == 0) return key;
  return RandomKey{random_bits(index_high, key), random_bits(~index_high, key)};
}

// Stochastic rounding takes 16 random bits for each element. Two neighbours share the halves of a hash.
template <class U>
LT_FN U random_16(U index, RandomKey key) {
  const U both = random_bits(index >> 1, key);
  return select((index & U(1u)) == U(0u), both & U(0xffffu), both >> 16);
}
