// Counter-based random bits for stochastic rounding: a hash of (seed, step, global element index), so that nothing else
// (threads, tiers, shards, order) affects the result. It takes two multiplications: with one, pairs at lags 16 and 256
// correlate. Indices count through the whole parameter, with rows padded to whole blocks (so that a block begins at a
// multiple of its size); bits above 32 are folded into the key.

struct RandomKey {
  u32 k0, k1;
};

LT_FN u64 splitmix64(u64 x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// index_high: the element index >> 32.
LT_FN RandomKey random_key(u64 seed, u64 step, u64 parameter, u64 index_high) {
  const u64 k = splitmix64(splitmix64(splitmix64(seed) ^ step) ^ (parameter + (index_high << 40)));
  return RandomKey{static_cast<u32>(k), static_cast<u32>(k >> 32)};
}

// Parameter n owns the streams n * kStreamsOfParameter + k, where k is the number of a state, or kWeightStream for the
// parameter itself.
inline constexpr u64 kStreamsOfParameter = 16, kWeightStream = 15;

// Constants of the hash: the multiplier of the index, then factors and shifts that mix it.
inline constexpr u32 kRandomIncrement = 0x9e3779b9u;
inline constexpr u32 kRandomFactor0 = 0x2c1b3c6du, kRandomFactor1 = 0x297a2d39u;
inline constexpr int kRandomShift0 = 15, kRandomShift1 = 13, kRandomShift2 = 16;

// A hash in two parts: k0 acts on the index, and k1 on the result. Over all keys both results are exactly uniform and
// independent, because each part first mixes in a key word and is one-to-one from there on.
template <class U>
LT_FN U random_half(U index, RandomKey key) {
  const U x = index * U(kRandomIncrement) + U(key.k0);
  return (x ^ (x >> kRandomShift0)) * U(kRandomFactor0);
}
template <class U>
LT_FN U random_rest(U half, RandomKey key) {
  U x = half ^ U(key.k1);
  x = (x ^ (x >> kRandomShift1)) * U(kRandomFactor1);
  return x ^ (x >> kRandomShift2);
}

// 32 random bits for index `index`.
template <class U>
LT_FN U random_bits(U index, RandomKey key) {
  return random_rest(random_half(index, key), key);
}

// The key for elements whose indices have these bits above the low 32.
LT_FN RandomKey key_at(RandomKey key, u32 index_high) {
  if (index_high == 0) return key;
  return RandomKey{random_bits(index_high, key), random_bits(~index_high, key)};
}

// Stochastic rounding takes 16 random bits per element, and four neighbours share a hash. Element 4 n + k takes its
// upper byte from byte k of hash n, and its lower byte from byte 2 (even k) or 3 (odd k) of random_half(). Each
// element's 16 bits are exactly uniform over all keys. Two elements may share a lower byte, which decides only 1
// rounding in 256, so two roundings correlate by 2^-8 at most. (Bytes 0 and 1 of random_half() are mixed too little:
// columns of matrices would correlate.)
template <class U>
LT_FN U random_16(U index, RandomKey key) {
  const U half = random_half(index >> 2, key), hash = random_rest(half, key);
  const U two = select((index & U(2u)) == U(0u), hash, hash >> 16);
  return select((index & U(1u)) == U(0u), ((two << 8) & U(0xff00u)) | ((half >> 16) & U(0xffu)),
                (two & U(0xff00u)) | (half >> 24));
}
