// Exact sums of magnitudes or of their squares, and the largest magnitude. 32 members take 256 elements at a time. Each
// adds its terms as 128-bit integers, and all 32 agree on the place of bit 0. Squares of 32 binades, or magnitudes of
// 63, fit above that place; if others come, the sum so far goes to memory and the place moves. Include in a target's
// namespace after device-inl.h.

inline constexpr int kSumRounds = kBlock / 32;
inline constexpr u32 kInfinityBits = 0x7f800000u;
// Places kept free above the largest square so far, so that a slightly larger one moves nothing.
inline constexpr int kSpareBits = 6;
// Rounds of additions before the sum goes to memory. In a round, 32 members each add kSumRounds squares of 48 bits, up
// to 62 places above bit 0: at most 2^(48 + 62 + 3 + 5 + 8) in all, which fits 128 bits.
inline constexpr u32 kRoundsInWords = 256;
static_assert(kSumRounds == 8);

// Returns the place of bit 0 of a non-negative float's mantissa (power 1, from 0 to 253), or of its square (power 2).
template <int kPower>
LT_FN int place_of(u32 magnitude) {
  const int field = static_cast<int>(magnitude >> 23);
  return kPower * ((field ? field : 1) - 1);
}

LT_FN u32 largest_of_members(u32 x) {
  for (u32 distance = 16; distance > 0; distance /= 2) {
    const u32 other = from_lane_xor(x, distance);
    x = x > other ? x : other;
  }
  return x;
}

LT_FN void add_to_limbs(u32* limb, u32 x) {
  for (; x; ++limb) {
    const u32 before = atomic_add(limb, x);
    x = before + x < before ? 1u : 0u;  // the carry
  }
}

template <int kPower>
struct MemberSum {
  u32* limbs;
  u32 lane;
  u64 low = 0, high = 0;
  int base = 0;    // place of bit 0 of `low`
  u32 rounds = 0;  // since the sum went to memory
  u32 largest = 0;

  // Adds x[] of all members, which are magnitudes as float bits.
  LT_METHOD void take(u32 (&x)[kSumRounds]) {
    u32 most = 0;
#pragma unroll
    for (int j = 0; j < kSumRounds; ++j) most = x[j] > most ? x[j] : most;
    largest = most > largest ? most : largest;
    if (most >= kInfinityBits) {  // the sum is then meaningless, but accesses must stay valid
      most = 0;
      for (int j = 0; j < kSumRounds; ++j) x[j] = 0;
    }
    if (ballot(place_of<kPower>(most) > base + 62) || rounds >= kRoundsInWords) {
      const int top = place_of<kPower>(largest_of_members(most)) + kSpareBits;
      move(top > base + 62 ? top : base + 62);
    }
    if (ballot(add(x, 1 << 30))) add_rest(x);
  }

  LT_METHOD void finish(u32* least) {
    flush();
    largest = largest_of_members(largest);
    if (lane == 0) atomic_min(least, ~largest);
  }

 private:
  // Adds the terms at or above `base` and below `end`. Returns true if smaller ones are left.
  LT_METHOD bool add(const u32 (&x)[kSumRounds], int end) {
    bool others = false;
#pragma unroll
    for (int j = 0; j < kSumRounds; ++j) {
      const int place = place_of<kPower>(x[j]), shift = place - base;
      const bool here = shift >= 0 && place < end;
      others = others || (shift < 0 && x[j] != 0);
      const u32 mantissa = here ? (x[j] & 0x7fffffu) | (x[j] >> 23 ? 0x800000u : 0u) : 0u;
      const u32 by = here ? static_cast<u32>(shift) : 0u;
      const u64 term = static_cast<u64>(mantissa) * (kPower == 2 ? mantissa : 1u), added = term << by;
      low += added;
      high += (term >> 1 >> (63 - by)) + (low < added ? 1u : 0u);
    }
    ++rounds;
    return others;
  }

  // Adds the terms below `base`, squares of elements more than 29 binades below the recent largest, 32 binades at a
  // time; magnitudes twice as many.
  LT_METHOD void add_rest(const u32 (&x)[kSumRounds]) {
#pragma unroll 1
    for (;;) {
      const int end = base;
      u32 most = 0;
      for (int j = 0; j < kSumRounds; ++j)
        if (place_of<kPower>(x[j]) < end && x[j] > most) most = x[j];
      most = largest_of_members(most);
      if (most == 0) return;
      move(place_of<kPower>(most));
      add(x, end);
    }
  }

  // Moves the range so that it ends at `top`.
  LT_METHOD void move(int top) {
    flush();
    base = top > 62 ? top - 62 : 0;
  }

  // Adds the sums of all members to memory.
  LT_METHOD void flush() {
    if (rounds == 0) return;
    u32 word[4] = {static_cast<u32>(low), static_cast<u32>(low >> 32), static_cast<u32>(high),
                   static_cast<u32>(high >> 32)};
#pragma unroll 1
    for (u32 distance = 16; distance > 0; distance /= 2) {
      u64 carried = 0;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        carried += static_cast<u64>(word[k]) + from_lane_xor(word[k], distance);
        word[k] = static_cast<u32>(carried);
        carried >>= 32;
      }
    }
    const u32 at = static_cast<u32>(base + kPower * kLeastFloat - kSumLowest), by = at % 32;
    u32 mine = 0;
#pragma unroll
    for (u32 k = 0; k < 5; ++k) {
      const u32 here = k < 4 ? word[k < 4 ? k : 3] << by : 0u;
      const u32 from_below = k > 0 ? static_cast<u32>(static_cast<u64>(word[k > 0 ? k - 1 : 0]) << by >> 32) : 0u;
      if (lane == k) mine = here | from_below;
    }
    add_to_limbs(limbs + at / 32 + lane, mine);
    low = high = 0;
    rounds = 0;
  }
};

// Loads the magnitudes of elements `first` to `end` as float bits.
LT_FN void load_magnitudes(const DeviceTensor& grad, i64 first, i64 end, u32 (&x)[kSumRounds]) {
  const auto of_each = [&](auto&& load) {
#pragma unroll
    for (int j = 0; j < kSumRounds; ++j) {
      const i64 i = first + 32 * j;
      x[j] = i < end ? load(i) : 0u;
    }
  };
  const auto* const floats = static_cast<const u32*>(grad.data);
  const auto* const halves = static_cast<const u16*>(grad.data);
  if (grad.dim_count)
    of_each([&](i64 i) { return bits(abs(load(grad, i))); });
  else if (grad.dtype == 0)
    of_each([&](i64 i) { return floats[i] & 0x7fffffffu; });
  else if (grad.dtype == 1)
    of_each([&](i64 i) { return (halves[i] & 0x7fffu) << 16; });
  else
    of_each([&](i64 i) { return bits(f16_decode(halves[i] & 0x7fffu)); });
}

// Adds the squares of all items' gradients.
LT_FN void sum_squares(const DeviceItem* items, const i64* starts, i64 count, i64 tiles, SumParts* parts) {
  const Member me = this_member();
  MemberSum<2> sum{parts->limbs[me.mine % SumParts::kParts], me.lane};
  for (i64 t = me.mine; t < tiles; t += me.all) {
    const i64 at = find_item(starts, count, t);
    const DeviceItem& item = items[at];
    const i64 block = (t - starts[at]) * kBlocksOfTile, left = item.blocks - block;
    // Rows are consecutive.
    const i64 end = element_in(&item, block + (left < kBlocksOfTile ? left : kBlocksOfTile), 0).element;
    for (i64 first = element_in(&item, block, 0).element; first < end; first += kBlock) {
      u32 x[kSumRounds];
      load_magnitudes(item.grad, first + me.lane, end, x);
      sum.take(x);
    }
  }
  sum.finish(&parts->least);
}

// A single group calls this.
LT_FN void merge_sums(const SumParts* parts, Sums* sums) {
  const u32 i = id_in_group();
  if (i == 0) sums->largest = ~parts->least;
  if (i >= kSumLimbs) return;
  u64 sum = 0;
  for (int part = 0; part < SumParts::kParts; ++part) sum += parts->limbs[part][i];
  sums->limbs[i] = static_cast<i64>(sum);
}
