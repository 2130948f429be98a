// dynamic8 on the hot path. Included in the namespace of a .cu file after lane_codec-inl.h and real-inl.h.

// Look-ups in shared memory. One instruction computes an entry's address as the product of a byte or half with the
// entry's size; C++ would take two. Loads are volatile, so that no compiler moves them before the barrier after which
// tables are filled.
LT_FN u32 address_of([[maybe_unused]] const void* shared) {
#ifdef __CUDA_ARCH__
  return static_cast<u32>(__cvta_generic_to_shared(shared));
#else
  return 0;  // without PTX, addresses are entry numbers
#endif
}
// Returns the word whose number is byte i of `of`, counted from kOffset bytes after `shared`.
template <int kOffset>
LT_FN u32 word_by_byte(const void* shared, u32 of, int i) {
#ifdef __CUDA_ARCH__
  u32 at, word;
  asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(at) : "r"(of), "r"(4u << 8 * i), "r"(address_of(shared)));
  asm volatile("ld.shared.u32 %0, [%1+%2];" : "=r"(word) : "r"(at), "n"(kOffset));
  return word;
#else
  u32 word;
  __builtin_memcpy(&word, static_cast<const u8*>(shared) + kOffset + 4 * (of >> 8 * i & 0xffu), sizeof word);
  return word;
#endif
}
// Returns the word whose number is the upper half of `of`; `table` begins with number `first`.
template <bool kSigned>
LT_FN u32 word_by_half(const u32* table, u32 of, int first) {
#ifdef __CUDA_ARCH__
  u32 at;
  const u32 begin = address_of(table) - 4u * static_cast<u32>(first);
  if constexpr (kSigned)
    asm("dp2a.lo.s32.u32 %0, %1, %2, %3;" : "=r"(at) : "r"(of), "r"(4u << 8), "r"(begin));
  else
    asm("dp2a.lo.u32.u32 %0, %1, %2, %3;" : "=r"(at) : "r"(of), "r"(4u << 8), "r"(begin));
  u32 word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(at));
  return word;
#else
  return table[(kSigned ? static_cast<int>(of) >> 16 : static_cast<int>(of >> 16)) - first];
#endif
}

// dynamic8 by one addition per code: sum = entry[u >> 16] + u has the code in its byte 2. u has the float bits of the
// magnitude, or bits with the same order. An entry is the portable entry minus the amount that u >> 16 adds.
//
// For second moments, u has the bits of x 2^22, at least 1 if x > 0 (the first bucket). For x = 0, u has the bits of
// the float below 1, in a bucket before the first, whose codes are 0.
// For signed states, u has the bits of x 2^-104, so the first bucket begins at 2^-126, and denormals lie below it
// however much they lose. A negative value has the complement of its magnitude's bits, which is the integer -(magnitude
// + 1), so its ties fall as in the portable kernels; buckets continue below 0.
//
// Stochastic rounding gives the portable kernels' ranks, also in byte 2. Two look-ups find the two pieces that matter:
// each row of 1/8 binade has a byte (45 words hold the usual rows), which leads to a pair of pieces, one load of 16
// bytes. There are few pairs, and eight consecutive pairs, which span four decades, have no bank conflicts.
template <>
struct LaneCodec<Dynamic8> {
  static constexpr u32 kBuckets = Dynamic8Table::kLastKey - Dynamic8Table::kFirstKey + 1;
  static constexpr int kUp = 22, kDown = -104;  // exponents of the factors 2^22 and 2^-104
  static constexpr int kFirstUp = static_cast<int>(Dynamic8Table::kFirstKey) + (kUp << 7) - 1;  // with zero's bucket
  static constexpr int kFirstDown = static_cast<int>(Dynamic8Table::kFirstKey) + kDown * 128;
  static constexpr int kMagnitudes = kFirstDown + static_cast<int>(kBuckets);
  static_assert(kFirstUp == 0x3f7f && kFirstDown == 0x80);

  // A binade has eight rows, shifted so that the last piece begins with a row; then no row has more than two pieces.
  static constexpr int kRowShift = 20, kRows = 8 * 22 + 2, kPairs = 16;
  static constexpr int kSignedRows = (127 << (23 - kRowShift)) + 2;  // from 0 on, because values need no lower bound
  struct alignas(16) Pair {
    float slope, intercept, other_slope, other_intercept;
  };
  struct Values {
    float value[2][256];  // as in the portable table: [0] unsigned, [1] signed
  };
  struct Shared : Values {
    Pair pair[2][kPairs];
    // Byte offsets of pairs, indexed by (u + shift_of) >> kRowShift: unsigned from kFirstRow on, then signed from 0 on.
    u8 pair_at[kRows + kSignedRows];
    u64 row[2];  // address of pair_at's entry for u = 0, in fixed point with 32 fractional bits
    float lowest[2];
    u32 second_moment[1 + kBuckets];  // by (u >> 16) - kFirstUp
    u32 code[2 * kMagnitudes];        // by (u >> 16) + kMagnitudes, signed
  };

  // Called by all threads of a block, which then meet.
  LT_FN void fill_values(Values& shared, const void* tables) {
    const Dynamic8Table* const side = static_cast<const Dynamic8::Tables*>(tables)->side;
    for (u32 i = threadIdx.x; i < 256; i += blockDim.x)
      shared.value[0][i] = side[0].value[i], shared.value[1][i] = side[1].value[i];
  }
  LT_FN void fill(Shared& shared, const void* tables) {
    const Dynamic8Table* const side = static_cast<const Dynamic8::Tables*>(tables)->side;
    fill_values(shared, tables);
    for (u32 i = threadIdx.x; i < 1 + kBuckets; i += blockDim.x)
      shared.second_moment[i] = i ? side[0].bucket[i - 1] - ((i + kFirstUp) << 16) : 0u - bits(0x1.fffffep-1f);
    for (u32 i = threadIdx.x; i < kMagnitudes; i += blockDim.x) {
      // A bucket before the first has rank 0 and no midpoint.
      const u32 bucket = i < kFirstDown ? 0u : side[1].bucket[i - kFirstDown];
      const u32 next = i < kFirstDown || i + 1 == kMagnitudes ? bucket : side[1].bucket[i + 1 - kFirstDown];
      const u32 rank = bucket >> 16;
      shared.code[kMagnitudes + i] = bucket + (Dynamic8::kSignedZero << 16) - (i << 16);
      // Complements that carry (magnitudes below the midpoint) get 127 - rank, others one less. There is no code -1.
      const bool splits = (next >> 16) > rank && rank < Dynamic8::kSignedZero;
      const u32 low = splits ? Dynamic8::kSignedZero - 1 - rank
                             : Dynamic8::kSignedZero - (rank < Dynamic8::kSignedZero ? rank : Dynamic8::kSignedZero);
      shared.code[kMagnitudes - 1 - i] = (low << 16) + (splits ? 0xffffu - (bucket & 0xffffu) : 0u) + ((i + 1) << 16);
    }
    const u32 of_first = changes_of(side[0]), of_second = changes_of(side[1]);
    const auto changes = [=](u32 n) { return n ? of_second : of_first; };
    for (u32 i = threadIdx.x; i < kRows + kSignedRows; i += blockDim.x) {
      const u32 n = i < kRows ? 0u : 1u, row = n ? i - kRows : kFirstRow + i;
      const u32 begin = ((row < kFirstRow ? kFirstRow : row) << kRowShift) - shift_of(side[n]);
      shared.pair_at[i] = static_cast<u8>(sizeof(Pair) * pair_number(changes(n), binade_of(side[n], begin)));
    }
    for (u32 i = threadIdx.x; i < 2 * kBinades; i += blockDim.x) {
      const u32 n = i / kBinades, binade = i % kBinades;
      if (binade == 0 || (changes(n) >> binade & 1) != 0)
        shared.pair[n][pair_number(changes(n), binade)] = pair_in(side[n], binade);
    }
    for (u32 n = threadIdx.x; n < 2; n += blockDim.x) {
      const u64 at = u64{address_of(shared.pair_at) + (n ? kRows : 0u)} << kRowShift;
      shared.row[n] = (at + shift_of(side[n]) - (n ? 0 : u64{kFirstRow} << kRowShift)) << (32 - kRowShift);
      shared.lowest[n] = n ? Dynamic8Table::kLowestRow : side[0].lowest;
    }
  }

  // The portable table has a pair of pieces for each binade, here counted from the lowest. Consecutive equal pairs
  // share a number.
  static constexpr u32 kOne = 127u << 23, kBinades = Dynamic8Table::kLastExponent - Dynamic8Table::kFirstExponent + 1;
  static constexpr u32 kFirstRow = Dynamic8Table::kFirstExponent << (23 - kRowShift);
  // Moves the first value after the second-to-last entry to the beginning of a row.
  LT_FN u32 shift_of(const Dynamic8Table& of) {
    constexpr u32 kBelowOne = Dynamic8Table::kLastExponent - 1;
    const u32 carry = of.carry[kBelowOne & Dynamic8Table::kRowMask];
    return carry & ((1u << kRowShift) - 1);
  }
  LT_FN Pair pair_in(const Dynamic8Table& of, u32 binade) {
    const u32 at = (Dynamic8Table::kFirstExponent + binade) & Dynamic8Table::kRowMask;
    return {of.slope[at], of.intercept[at], of.joint_slope[at], of.joint_intercept[at]};
  }
  // Returns a mask of the binades whose pair differs from the pair of the binade below.
  LT_FN u32 changes_of(const Dynamic8Table& of) {
    u32 changes = 0;
    for (u32 binade = 1; binade < kBinades; ++binade) {
      const Pair a = pair_in(of, binade - 1), b = pair_in(of, binade);
      changes |= u32{a.slope != b.slope || a.other_slope != b.other_slope} << binade;
    }
    return changes;
  }
  LT_FN u32 pair_number(u32 changes, u32 binade) { return static_cast<u32>(__popc(changes & ((2u << binade) - 1))); }
  LT_FN float least_of(const Pair& pair, float x) {
    const float one = x * pair.slope + pair.intercept, other = x * pair.other_slope + pair.other_intercept;
    return one < other ? one : other;
  }
  // Returns the binade whose pair serves a row that begins with these bits. If the middle of a joint is within the row,
  // the portable kernels use two binades, which both have the joint; the binade that also has the row's other piece has
  // the least value at the end.
  LT_FN u32 binade_of(const Dynamic8Table& of, u32 begin) {
    const auto portable = [&](u32 u) {
      return ((u + of.carry[(u >> 23) & Dynamic8Table::kRowMask]) >> 23) - Dynamic8Table::kFirstExponent;
    };
    constexpr u32 kLeast = Dynamic8Table::kFirstExponent << 23;
    const u32 last = begin + (1u << kRowShift) - 1, end = last < kOne ? last : kOne;
    const u32 one = portable(begin < kLeast ? kLeast : begin), other = portable(end);
    const float x = as_float(end);
    return least_of(pair_in(of, one), x) <= least_of(pair_in(of, other), x) ? one : other;
  }

  template <bool kSigned>
  LT_FN u32 sum(const Shared& shared, float value, float factor) {
    const float x = value * factor;
    if constexpr (kSigned) {
      const u32 u = bits(x) ^ (static_cast<u32>(static_cast<int>(bits(x)) >> 31) & 0x7fffffffu);
      return word_by_half<true>(shared.code, u, -kMagnitudes) + u;
    } else {
#ifdef __CUDA_ARCH__
      float least;  // 1 for a value above 0, so that the product is 2^-23 or more
      asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(least) : "f"(value), "f"(0x1p126f), "f"(0x1.fffffep-1f));
      const u32 u = bits(fmaxf(x, least));
#else
      const u32 u = bits(max(x, value > 0.f ? 1.f : 0x1.fffffep-1f));
#endif
      return word_by_half<false>(shared.second_moment, u, kFirstUp) + u;
    }
  }

  // `random` has 16 bits. There is no code -1; the next code replaces it. kNormal says that second moments are 0 or
  // normal numbers. Their bits, 2^23 or more, then exceed their sums: only ranks from 128 on have sums of 2^23 or more,
  // and these belong to values near the largest of a block, which is 2^-96 or more.
  template <bool kSigned, bool kNormal>
  LT_FN u32 random_sum(const Shared& shared, float value, float inverse, u32 random, float lowest, u64 row) {
    float magnitude = __saturatef(abs(value) * inverse);
    if constexpr (!kSigned) magnitude = fmaxf(magnitude, lowest);
    const Pair pair = pair_at<kSigned>(shared, bits(magnitude), row);
    const float least =
        fminf(magnitude * pair.slope + pair.intercept, magnitude * pair.other_slope + pair.other_intercept);
    if constexpr (kSigned) return truncate_above(least) + random;
    const u32 rank = truncate(least) + random;
    if constexpr (kNormal) return rank < bits(value) ? rank : bits(value);
    return value > 0.f ? rank : 0u;
  }
  // Truncates x in [0, 2^23]; byte 3 is undefined.
  LT_FN u32 truncate_above(float x) {
#ifdef __CUDA_ARCH__
    return bits(__fadd_rz(x, 0x1p23f));
#else
    return bits(0x1p23f) + truncate(x);
#endif
  }
  // Returns the codes of four values from the ranks of their magnitudes, one byte each.
  LT_FN u32 with_signs(u32 rank, const float* value) {
    const u32 sign = __byte_perm(__byte_perm(bits(value[0]), bits(value[1]), 0x73),
                                 __byte_perm(bits(value[2]), bits(value[3]), 0x73), 0x5410) &
                     0x80808080u;
    const u32 mask = sign - (sign >> 7);
    rank = rank - ((rank & sign) >> 7);  // there is no entry at -1
    return (rank ^ mask) + (0x7f7f7f7fu - mask);
  }
  // Adds the lower half of `of`.
  LT_FN u32 plus_half(u32 of, u32 x) {
#ifdef __CUDA_ARCH__
    u32 sum;
    asm("dp2a.lo.u32.u32 %0, %1, %2, %3;" : "=r"(sum) : "r"(of), "r"(1u), "r"(x));
    return sum;
#else
    return x + (of & 0xffffu);
#endif
  }
  template <bool kSigned>
  LT_FN Pair pair_at(const Shared& shared, u32 u, u64 row) {
    row += u64{u} * (1u << (32 - kRowShift));  // one instruction
#ifdef __CUDA_ARCH__
    u32 at;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(at) : "r"(static_cast<u32>(row >> 32)));
#else
    const u32 at = shared.pair_at[row >> 32];
#endif
    return *reinterpret_cast<const Pair*>(reinterpret_cast<const u8*>(shared.pair[kSigned]) + at);
  }

  // Packs byte 2 of each word.
  LT_FN u32 pack(u32 a, u32 b, u32 c, u32 d) {
    return __byte_perm(__byte_perm(a, b, 0x62), __byte_perm(c, d, 0x62), 0x5410);
  }

  template <bool kSigned>
  struct Codes {
    u32 word[kLaneElements / 4];
    LT_FN float scale(float absmax) { return absmax; }
    LT_FN float inverse(float absmax) { return absmax == 0.f ? 0.f : unchecked_divide(1.f, absmax); }
    // Scales the values of small blocks up, which is exact, and their reciprocals down by the same factor; denormal
    // blocks have reciprocals of 0. Scales all second moments, so that positive ones are normal numbers.
    LT_FN float inverse_of_small(float absmax, float (&value)[kLaneElements]) {
      if (kSigned && absmax >= 0x1p-64f) return inverse(absmax);
#pragma unroll
      for (float& x : value) x = x * 0x1p64f;
      return absmax < 0x1p-126f ? 0.f : unchecked_divide(1.f, absmax * 0x1p64f);
    }
    // This is exact, because the factor is a power of two and reciprocals are in range.
    LT_FN float factor(float inverse) { return inverse * (kSigned ? 0x1p-104f : 0x1p22f); }
    LT_METHOD float get(const Values& shared, int i) const {
      return as_float(word_by_byte < kSigned ? sizeof shared.value[0] : 0 > (shared.value, word[i / 4], i % 4));
    }
    LT_METHOD void encode_four(const Shared& shared, int i, const float* value, float factor) {
      word[i / 4] = pack(sum<kSigned>(shared, value[0], factor), sum<kSigned>(shared, value[1], factor),
                         sum<kSigned>(shared, value[2], factor), sum<kSigned>(shared, value[3], factor));
    }
    template <bool kNormal>
    LT_METHOD void round_four(const Shared& shared, int i, const float* value, float inverse, const u32 (&random)[2]) {
      const float lowest = shared.lowest[kSigned];
      const u64 row = shared.row[kSigned];
      if constexpr (kSigned) {
        const u32 ranks =
            pack(plus_half(random[0], random_sum<kSigned, kNormal>(shared, value[0], inverse, 0u, lowest, row)),
                 random_sum<kSigned, kNormal>(shared, value[1], inverse, random[0] >> 16, lowest, row),
                 plus_half(random[1], random_sum<kSigned, kNormal>(shared, value[2], inverse, 0u, lowest, row)),
                 random_sum<kSigned, kNormal>(shared, value[3], inverse, random[1] >> 16, lowest, row));
        word[i / 4] = with_signs(ranks, value);
        return;
      }
      word[i / 4] = pack(random_sum<kSigned, kNormal>(shared, value[0], inverse, random[0] & 0xffffu, lowest, row),
                         random_sum<kSigned, kNormal>(shared, value[1], inverse, random[0] >> 16, lowest, row),
                         random_sum<kSigned, kNormal>(shared, value[2], inverse, random[1] & 0xffffu, lowest, row),
                         random_sum<kSigned, kNormal>(shared, value[3], inverse, random[1] >> 16, lowest, row));
    }
  };
};
