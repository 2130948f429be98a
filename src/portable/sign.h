// Packs signs into bits, 1 for +, and counts votes. A word W is an unsigned integer with one element per bit, the first
// in the lowest.

// Reverses the bits of each byte: converts between the orders "little" and "big".
template <class W>
LT_FN W mirrored(W word) {
  const W fours = static_cast<W>(0x0f0f0f0f0f0f0f0full), twos = static_cast<W>(0x3333333333333333ull),
          ones = static_cast<W>(0x5555555555555555ull);
  word = (word >> 4 & fours) | (word & fours) << 4;
  word = (word >> 2 & twos) | (word & twos) << 2;
  return (word >> 1 & ones) | (word & ones) << 1;
}

// The element types as integers.
template <class T>
struct SignBits;
template <>
struct SignBits<float> {
  using Raw = u32;
  static constexpr Raw kInfinity = 0x7f800000u, kMinusZero = 0x80000000u, kOne = 0x3f800000u;
};
template <>
struct SignBits<bf16> {
  using Raw = u16;
  static constexpr Raw kInfinity = 0x7f80, kMinusZero = 0x8000, kOne = 0x3f80;
};
template <>
struct SignBits<f16> {
  using Raw = u16;
  static constexpr Raw kInfinity = 0x7c00, kMinusZero = 0x8000, kOne = 0x3c00;
};

// The sign is + if x >= 0, on all targets: + for both zeros, never for NaN. It compares integers because devices that
// flush denormals would treat them as zeros.
template <class T>
LT_FN bool is_plus(typename SignBits<T>::Raw x) {
  return (x <= SignBits<T>::kInfinity) | (x == SignBits<T>::kMinusZero);
}

// The same, but `zero_is_plus` decides for both zeros.
template <class T>
LT_FN bool is_plus(typename SignBits<T>::Raw x, bool zero_is_plus) {
  const bool positive = (x != 0) & (x <= SignBits<T>::kInfinity);
  return positive | (zero_is_plus & ((x == 0) | (x == SignBits<T>::kMinusZero)));
}

template <class T>
LT_FN bool is_zero(typename SignBits<T>::Raw x) {
  return (x == 0) | (x == SignBits<T>::kMinusZero);
}

template <class T>
LT_FN bool is_finite(typename SignBits<T>::Raw x) {
  return static_cast<typename SignBits<T>::Raw>(x & static_cast<typename SignBits<T>::Raw>(~SignBits<T>::kMinusZero)) <
         SignBits<T>::kInfinity;
}

// +1, -1, or +0.
template <class T>
LT_FN typename SignBits<T>::Raw sign_value(bool plus, bool zero) {
  using B = SignBits<T>;
  return static_cast<typename B::Raw>(zero ? 0 : plus ? B::kOne : B::kOne | B::kMinusZero);
}

enum class Tie : int {
#define LT_TIE(number, name) name = number,
#include "portable/ties.def"
#undef LT_TIE
};

// Per bit, a + b + c = sum + 2 carry.
template <class W>
LT_FN void carry_save_add(W a, W b, W c, W* sum, W* carry) {
  const W differ = a ^ b;
  *carry = (a & b) | (differ & c);
  *sum = differ ^ c;
}

// Counters, one per bit of a word, stored in planes: bit j of every counter is in plane[j]. Adds 2^j to the counters
// with a 1 in `row`.
template <class W>
LT_FN void count_row(W* plane, int planes, int j, W row) {
  for (; j < planes; ++j) {
    const W carry = plane[j] & row;
    plane[j] = plane[j] ^ row;
    row = carry;
  }
}

// Adds eight rows with seven additions and one carry of weight 2^(j + 3) that ripples on. The planes must have room for
// the sum.
template <class W>
LT_FN void count_rows(W* plane, int planes, int j, const W (&row)[8]) {
  W two[4], four[2], eight;
  for (int i = 0; i < 4; ++i) carry_save_add(plane[j], row[2 * i], row[2 * i + 1], &plane[j], &two[i]);
  for (int i = 0; i < 2; ++i) carry_save_add(plane[j + 1], two[2 * i], two[2 * i + 1], &plane[j + 1], &four[i]);
  carry_save_add(plane[j + 2], four[0], four[1], &plane[j + 2], &eight);
  count_row(plane, planes, j + 3, eight);
}

// For each bit, sums the weights of the voters with a 1. row(v) returns voter v's word and is called once for each 1 in
// weights[v]. The planes must have room for the sum of all weights.
template <class W, class Weights, class Row>
LT_FN void count_votes(W* plane, int planes, const Weights& weights, int voters, Row&& row) {
  for (int j = 0; j < planes; ++j) plane[j] = 0;
  for (int j = 0; j < planes; ++j) {
    W rows[8];
    int held = 0;
    for (int v = 0; v < voters; ++v) {
      if (!((weights[v] >> j) & 1u)) continue;
      rows[held++] = row(v);
      if (held < 8) continue;
      count_rows(plane, planes, j, rows);
      held = 0;
    }
    for (int i = 0; i < held; ++i) count_row(plane, planes, j, rows[i]);
  }
}

// The same for a small, known number of planes, which stay in registers.
template <int kPlanes, class W, class Row>
LT_FN void count_votes_in_registers(W (&plane)[kPlanes], const u32* weights, int voters, Row&& row) {
  for (W& p : plane) p = 0;
  for (int v = 0; v < voters; ++v) {
    const u32 weight = weights[v];
    if (weight == 0) continue;
    const W word = row(v);
    for (int j = 0; j < kPlanes; ++j)
      if ((weight >> j) & 1u) count_row(plane, kPlanes, j, word);
  }
}

// The counters above half of `sum`, and the counters equal to it.
template <class W>
struct Majority {
  W plus, tie;
};
template <class W>
LT_FN Majority<W> majority(const W* plane, int planes, u32 sum) {
  const u32 half = sum >> 1;
  W above = 0, equal = static_cast<W>(~W{0});
  for (int j = planes - 1; j >= 0; --j) {
    if ((half >> j) & 1u) {
      equal = equal & plane[j];
    } else {
      above = above | (equal & plane[j]);
      equal = equal & ~plane[j];
    }
  }
  return {above, sum & 1u ? W{0} : equal};
}

// The same where each element has its own number of votes, in planes: `half` is half of that number, rounded down, and
// `odd` marks odd numbers.
template <class W>
LT_FN Majority<W> majority(const W* plane, int planes, const W* half, W odd) {
  W above = 0, equal = static_cast<W>(~W{0});
  for (int j = planes - 1; j >= 0; --j) {
    above = above | (equal & plane[j] & ~half[j]);
    equal = equal & ~(plane[j] ^ half[j]);
  }
  return {above, equal & ~odd};
}

// Random bits for ties: random_bits(group's low half, key of its high half) serves elements from 32 * group on.
LT_FN RandomKey tie_key(u64 seed, u64 step, u64 group_high) {
  constexpr u64 kStream = 0x7469657300000000ull;  // distinct from the keys of parameters
  return random_key(seed, step, kStream, group_high);
}
LT_FN u32 tie_group(u64 seed, u64 step, u64 group) {
  return random_bits(static_cast<u32>(group), tie_key(seed, step, group >> 32));
}

// One random bit for each bit of W, for the elements from `index` on.
template <class W>
LT_FN W tie_bits(u64 seed, u64 step, u64 index) {
  W all = 0;
  for (int at = 0; at < static_cast<int>(8 * sizeof(W)); at += 32) {
    const u64 first = index + static_cast<u64>(at);
    u32 bits32 = tie_group(seed, step, first / 32);
    if (const int shift = static_cast<int>(first % 32))
      bits32 = bits32 >> shift | tie_group(seed, step, first / 32 + 1) << (32 - shift);
    all = all | static_cast<W>(bits32) << at;
  }
  return all;
}

// The result of a vote. previous: the word of the previous result; only kPrevious reads it.
template <class W>
LT_FN W break_ties(const Majority<W>& of, Tie rule, u64 seed, u64 step, u64 index, W previous) {
  if (of.tie == 0) return of.plus;
  switch (rule) {
    case Tie::kPlus:
      return of.plus | of.tie;
    case Tie::kHash:
      return of.plus | (of.tie & tie_bits<W>(seed, step, index));
    case Tie::kPrevious:
      return of.plus | (of.tie & previous);
    case Tie::kMinus:
    case Tie::kZero:
      break;
  }
  return of.plus;
}
