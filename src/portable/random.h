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

// The keys of parameter n belong to the streams n * kStreamsOfParameter + k: k is the number of a state, or
// kWeightStream for the parameter itself.
inline constexpr u64 kStreamsOfParameter = 16, kWeightStream = 15;

// Constants of the hash: the multiplier of the index, then factors and shifts that mix it.
inline constexpr u32 kRandomIncrement = 0x9e3779b9u;
inline constexpr u32 kRandomFactor0 = 0x2c1b3c6du, kRandomFactor1 = 0x297a2d39u;
inline constexpr int kRandomShift0 = 15, kRandomShift1 = 13, kRandomShift2 = 16;

// A hash in two parts: what k0 makes of the index, and what k1 makes of that. Over all keys the results of the two are
// exactly even and independent, because a key word is added before each and all that follows is one to one.
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

// 32 random bits for number `index`.
template <class U>
LT_FN U random_bits(U index, RandomKey key) {
  return random_rest(random_half(index, key), key);
}

// The key of the elements whose indices have these bits above 32.
LT_FN RandomKey key_at(RandomKey key, u32 index_high) {
  if (index_high == 0) return key;
  return RandomKey{random_bits(index_high, key), random_bits(~index_high, key)};
}

// Stochastic rounding takes 16 random bits for each element. Four neighbours share a hash: element 4 n + k has byte k
// of hash n, and below it byte 2 or 3 of the half of that hash, as k is even or odd. Each element's 16 bits are exactly
// even over all keys. Two elements with one lower byte are enough: it decides a rounding in 1 of 256 cases, so that it
// correlates two roundings by 2^-8 at most. (Bytes 0 and 1 of the half are mixed too little: columns of matrices
// correlate.)
template <class U>
LT_FN U random_16(U index, RandomKey key) {
  const U half = random_half(index >> 2, key), hash = random_rest(half, key);
  const U two = select((index & U(2u)) == U(0u), hash, hash >> 16);
  return select((index & U(1u)) == U(0u), ((two << 8) & U(0xff00u)) | ((half >> 16) & U(0xffu)),
                (two & U(0xff00u)) | (half >> 24));
}
