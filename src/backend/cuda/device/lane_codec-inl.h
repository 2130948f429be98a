// Codecs of the hot path: 16 codes of a lane, for states that LaneBlocks (step-inl.h) lets through. Bits are those of
// the portable codecs. Included in the namespace of a .cu file after packed-inl.h. LaneCodec<C>::
//   Shared                     tables of a thread block in shared memory
//   Codes<kSigned>             words as memory has them; get(i): in units of the scale
//     encode_four(i, ...)      four values, to nearest, times factor(the block's absmax)
//     round_four<kNormal>(...) four values, stochastically, times inverse(absmax); random: as LaneRandom gives them;
//                              kNormal: none is a denormal number
//     scale(absmax)            what is stored with the block
template <class C>
struct LaneCodec;

// The codes of a rule's states.
template <class... Codes>
struct LaneStates {
  template <class Number>
  LT_METHOD auto& of(Number) {
    return *this;  // never called; a template, so that no compiler looks for what it returns
  }
};
template <class First, class... Others>
struct LaneStates<First, Others...> {
  First first;
  LaneStates<Others...> others;
  template <int k>
  LT_METHOD auto& of(Index<k>) {
    if constexpr (k == 0)
      return first;
    else
      return others.of(Index<k - 1>{});
  }
};

// Without scales, values are stored as an element type is. (A second moment in range never rounds to 0 in bfloat16.)
struct NoTables {};
template <class T>
struct PlainCodes {
  u32 word[kLaneElements * sizeof(T) / 4];
  LT_FN float factor(float) { return 1.f; }
  LT_FN float inverse(float) { return 1.f; }
  LT_METHOD float get(const NoTables&, int i) const { return Packed<T>::get(word, i); }
  LT_METHOD void encode_four(const NoTables&, int i, const float* value, float) {
    Packed<T>::set_two(word, i, value[0], value[1]);
    Packed<T>::set_two(word, i + 2, value[2], value[3]);
  }
};
template <>
struct LaneCodec<Fp32> {
  using Shared = NoTables;
  LT_FN void fill(NoTables&, const void*) {}
  template <bool kSigned>
  using Codes = PlainCodes<float>;
};
template <>
struct LaneCodec<Bf16> {
  using Shared = NoTables;
  LT_FN void fill(NoTables&, const void*) {}
  template <bool kSigned>
  struct Codes : PlainCodes<bf16> {
    template <bool>
    LT_METHOD void round_four(const NoTables&, int i, const float* value, float, const u32 (&random)[2]) {
#pragma unroll
      for (int two = 0; two < 2; ++two)
        this->word[i / 2 + two] =
            bf16_stochastic(value[2 * two], random[two]) | bf16_stochastic(value[2 * two + 1], random[two] >> 16) << 16;
    }
  };
};

// Bytes are taken out by permutations: shifts and masks would be merged with those of addresses, and be three instead
// of two.
//
// dynamic8 by one addition for each code: sum = entry[u >> 16] + u has the code in its byte 2, where u are the float
// bits of the magnitude, or something of their order, and an entry is the portable less what u >> 16 itself adds.
//
// Second moments: u are the bits of x 2^22, at least 1 where x > 0 (the first bucket), and those of the float below 1
// where x = 0, in a bucket before the first, whose codes are 0.
// Signed: u are the bits of x 2^-104, so that the first bucket begins at 2^-126 and denormals, however much they lose,
// are what is below it. Negative values have the complement of their magnitude's bits, as an integer -(magnitude + 1),
// which is where the portable kernels put a negative value's ties; buckets go on below 0.
//
// Stochastically: ranks as the portable kernels have them, in byte 2 as well. The two pieces of a row are one load of
// 16 bytes, which has no conflicts among eight rows that follow one another.
template <>
struct LaneCodec<Dynamic8> {
  static constexpr u32 kBuckets = Dynamic8Table::kLastKey - Dynamic8Table::kFirstKey + 1;
  static constexpr int kUp = 22, kDown = -104;  // exponents of the factors 2^22 and 2^-104
  static constexpr int kFirstUp = static_cast<int>(Dynamic8Table::kFirstKey) + (kUp << 7) - 1;  // with that of zero
  static constexpr int kFirstDown = static_cast<int>(Dynamic8Table::kFirstKey) + kDown * 128;
  static constexpr int kMagnitudes = kFirstDown + static_cast<int>(kBuckets);
  static_assert(kFirstUp == 0x3f7f && kFirstDown == 0x80);

  // Rows of 8 to a binade, so shifted that the last piece begins with one: none has more than two pieces.
  static constexpr int kRowShift = 20, kRows = 8 * 22 + 2;
  struct alignas(16) Row {
    float slope, intercept, other_slope, other_intercept;
  };
  struct Shared {
    float value[2][256];  // as the portable, [0] unsigned, [1] signed
    Row row[2][kRows];    // of (u + shift) >> kRowShift less first_row, of the bits of a magnitude
    u32 shift[2];
    float lowest[2];
    u32 second_moment[1 + kBuckets];  // of u >> 16 less kFirstUp
    u32 code[2 * kMagnitudes];        // of u >> 16, signed, plus kMagnitudes
  };

  // By all threads of a block, which then meet.
  LT_FN void fill(Shared& shared, const void* tables) {
    const Dynamic8Table* const side = static_cast<const Dynamic8::Tables*>(tables)->side;
    for (u32 i = threadIdx.x; i < 256; i += blockDim.x)
      shared.value[0][i] = side[0].value[i], shared.value[1][i] = side[1].value[i];
    for (u32 i = threadIdx.x; i < 1 + kBuckets; i += blockDim.x)
      shared.second_moment[i] = i ? side[0].bucket[i - 1] - ((i + kFirstUp) << 16) : 0u - bits(0x1.fffffep-1f);
    for (u32 i = threadIdx.x; i < kMagnitudes; i += blockDim.x) {
      // A bucket before the first is of rank 0, without a midpoint.
      const u32 bucket = i < kFirstDown ? 0u : side[1].bucket[i - kFirstDown];
      const u32 next = i < kFirstDown || i + 1 == kMagnitudes ? bucket : side[1].bucket[i + 1 - kFirstDown];
      const u32 rank = bucket >> 16;
      shared.code[kMagnitudes + i] = bucket + (Dynamic8::kSignedZero << 16) - (i << 16);
      // 127 - rank for complements that carry, of magnitudes below the midpoint; else one less. There is no code -1.
      const bool splits = (next >> 16) > rank && rank < Dynamic8::kSignedZero;
      const u32 low = splits ? Dynamic8::kSignedZero - 1 - rank
                             : Dynamic8::kSignedZero - (rank < Dynamic8::kSignedZero ? rank : Dynamic8::kSignedZero);
      shared.code[kMagnitudes - 1 - i] = (low << 16) + (splits ? 0xffffu - (bucket & 0xffffu) : 0u) + ((i + 1) << 16);
    }
    for (u32 i = threadIdx.x; i < 2 * kRows; i += blockDim.x) {
      const u32 n = i / kRows, key = kFirstRow + i % kRows;
      const Dynamic8Table& of = side[n];
      const u32 shift = shift_of(of), last = (kOne + shift) >> kRowShift;
      // The pieces at both ends. A row's first value may be where the piece before it ends; not so the last row's.
      const u32 begin = (key << kRowShift) - shift, end = begin + (1u << kRowShift) - 1;
      const Line from = line_at(of, key < last ? begin - 1 : begin), to = line_at(of, key < last ? end : begin);
      shared.row[n][i % kRows] = {from.slope, from.intercept, to.slope, to.intercept};
    }
    for (u32 n = threadIdx.x; n < 2; n += blockDim.x) {
      shared.shift[n] = shift_of(side[n]) - (kFirstRow << kRowShift);
      shared.lowest[n] = n ? Dynamic8Table::kLowestRow : side[0].lowest;
    }
  }

  static constexpr u32 kOne = 127u << 23;
  static constexpr u32 kFirstRow = Dynamic8Table::kFirstExponent << (23 - kRowShift);
  using Line = Dynamic8::Line;
  // Takes the first value behind the last entry but one to the beginning of a row.
  LT_FN u32 shift_of(const Dynamic8Table& of) {
    constexpr u32 kBelowOne = Dynamic8Table::kLastExponent - 1;
    const u32 carry = of.carry[kBelowOne & Dynamic8Table::kRowMask];
    return carry & ((1u << kRowShift) - 1);
  }
  // The piece at a magnitude of these bits, as the portable kernels find it.
  LT_FN Line line_at(const Dynamic8Table& of, u32 u) {
    const u32 least = bits(Dynamic8Table::kLowestRow), inside = u < least ? least : u < kOne ? u : kOne;
    const u32 at = ((inside + of.carry[(inside >> 23) & Dynamic8Table::kRowMask]) >> 23) & Dynamic8Table::kRowMask;
    const float x = as_float(inside);
    const float decade = x * of.slope[at] + of.intercept[at], joint = x * of.joint_slope[at] + of.joint_intercept[at];
    return decade < joint ? Line{of.slope[at], of.intercept[at]} : Line{of.joint_slope[at], of.joint_intercept[at]};
  }

  template <bool kSigned>
  LT_FN u32 sum(const Shared& shared, float value, float factor) {
    const float x = value * factor;
    if constexpr (kSigned) {
      const u32 u = bits(x) ^ (static_cast<u32>(static_cast<int>(bits(x)) >> 31) & 0x7fffffffu);
      // The upper half with its sign. Not __byte_perm with 0xbb32, as in PTX: CUDA's masks each selector by 7.
      return shared.code[(static_cast<int>(u) >> 16) + kMagnitudes] + u;
    } else {
#ifdef __CUDA_ARCH__
      float least;  // 1 for what is above 0, for the product is 2^-23 or more
      asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(least) : "f"(value), "f"(0x1p126f), "f"(0x1.fffffep-1f));
      const u32 u = bits(fmaxf(x, least));
#else
      const u32 u = bits(max(x, value > 0.f ? 1.f : 0x1.fffffep-1f));
#endif
      return shared.second_moment[static_cast<int>(__byte_perm(u, 0, 0x4432)) - kFirstUp] + u;
    }
  }

  // random: 16 bits. A code of -1 that is none is that of the entry above it. kNormal: second moments are 0 or normal
  // numbers. Then their bits, 2^23 and more, are above any sum of theirs: sums of 2^23 and more are those of ranks from
  // 128 on, of what is nearly the largest of a block, which is 2^-96 or more.
  template <bool kSigned, bool kNormal>
  LT_FN u32 random_sum(const Shared& shared, float value, float inverse, u32 random, float lowest, u32 shift) {
    float magnitude = __saturatef(abs(value) * inverse);
    const float inside = fmaxf(magnitude, lowest);
    if constexpr (!kSigned) magnitude = inside;
    const Row row = shared.row[kSigned][row_of(bits(inside) + shift)];
    const u32 rank =
        truncate(fminf(magnitude * row.slope + row.intercept, magnitude * row.other_slope + row.other_intercept)) +
        random;
    if constexpr (!kSigned && kNormal) return rank < bits(value) ? rank : bits(value);
    if constexpr (!kSigned) return value > 0.f ? rank : 0u;
    constexpr u32 kZero = Dynamic8::kSignedZero << 16, kDown = kZero | 0xffffu;
    return value < 0.f ? kDown - (rank < kDown ? rank : kDown) : kZero + rank;
  }
  // Not as C++: the compiler would make three instructions of the shift and the address.
  LT_FN u32 row_of(u32 u) {
#ifdef __CUDA_ARCH__
    u32 row;
    asm("shr.u32 %0, %1, %2;" : "=r"(row) : "r"(u), "n"(kRowShift));
    return row;
#else
    return u >> kRowShift;
#endif
  }

  // Byte 2 of each.
  LT_FN u32 pack(u32 a, u32 b, u32 c, u32 d) {
    return __byte_perm(__byte_perm(a, b, 0x62), __byte_perm(c, d, 0x62), 0x5410);
  }

  template <bool kSigned>
  struct Codes {
    u32 word[kLaneElements / 4];
    LT_FN float scale(float absmax) { return absmax; }
    LT_FN float inverse(float absmax) { return absmax == 0.f ? 0.f : unchecked_divide(1.f, absmax); }
    // Exact: a power of two, and reciprocals in range.
    LT_FN float factor(float absmax) { return inverse(absmax) * (kSigned ? 0x1p-104f : 0x1p22f); }
    LT_METHOD float get(const Shared& shared, int i) const {
      return shared.value[kSigned][__byte_perm(word[i / 4], 0, 0x4440u + i % 4)];
    }
    LT_METHOD void encode_four(const Shared& shared, int i, const float* value, float factor) {
      word[i / 4] = pack(sum<kSigned>(shared, value[0], factor), sum<kSigned>(shared, value[1], factor),
                         sum<kSigned>(shared, value[2], factor), sum<kSigned>(shared, value[3], factor));
    }
    template <bool kNormal>
    LT_METHOD void round_four(const Shared& shared, int i, const float* value, float inverse, const u32 (&random)[2]) {
      const float lowest = shared.lowest[kSigned];
      const u32 shift = shared.shift[kSigned];
      word[i / 4] = pack(random_sum<kSigned, kNormal>(shared, value[0], inverse, random[0] & 0xffffu, lowest, shift),
                         random_sum<kSigned, kNormal>(shared, value[1], inverse, random[0] >> 16, lowest, shift),
                         random_sum<kSigned, kNormal>(shared, value[2], inverse, random[1] & 0xffffu, lowest, shift),
                         random_sum<kSigned, kNormal>(shared, value[3], inverse, random[1] >> 16, lowest, shift));
    }
  };
};

// float8 by arithmetic. With z: the bits of half of the smallest normal number, a code c stands for the float of bits
// (c << 19) + z, or for the difference of twice that and the smallest normal number, whichever is less. One rounding
// instead of two is the same: below 2^-125, where halving rounds, the sum is z's.
template <>
struct LaneCodec<Float8> {
  using Shared = NoTables;
  LT_FN void fill(NoTables&, const void*) {}
  // below: what is added to the bits that are cut off.
  template <bool kSigned>
  LT_FN u32 code(float value, float inverse, u32 below) {
    const float magnitude = abs(value) * inverse;
    const float t = fmaxf(magnitude, __fmaf_rn(magnitude, 0.5f, Float8::kHalfLow<kSigned>));
    const u32 sum = (bits(t) - Float8::kZeroBits<kSigned> + below) >> Float8::kCut;
    if constexpr (kSigned) return sum | ((bits(value) >> 24) & 0x80u);
    const u32 least = bits(value) < 1u ? bits(value) : 1u;
    return sum > least ? sum : least;
  }

  template <bool kSigned>
  struct Codes {
    u32 word[kLaneElements / 4];
    LT_FN float scale(float absmax) { return Float8::block_scale<kSigned>(absmax).scale; }
    LT_FN float inverse(float absmax) { return Float8::block_scale<kSigned>(absmax).inverse; }
    LT_METHOD float get(const NoTables&, int i) const {
      const u32 byte = __byte_perm(word[i / 4], 0, 0x4440u + i % 4), magnitude = kSigned ? byte & 0x7fu : byte;
      const float t = as_float(magnitude * (1u << Float8::kCut) + Float8::kZeroBits<kSigned>);
      const float x = fminf(t, __fmaf_rn(t, 2.f, -2.f * Float8::kHalfLow<kSigned>));
      return kSigned ? as_float(bits(x) | (byte & 0x80u) << 24) : x;
    }
    template <bool>
    LT_METHOD void round_four(const NoTables&, int i, const float* value, float inverse, const u32 (&random)[2]) {
      put_four(i, code<kSigned>(value[0], inverse, below(random[0] & 0xffffu)),
               code<kSigned>(value[1], inverse, below(random[0] >> 16)),
               code<kSigned>(value[2], inverse, below(random[1] & 0xffffu)),
               code<kSigned>(value[3], inverse, below(random[1] >> 16)));
    }

   private:
    LT_METHOD static u32 below(u32 random) { return (random << (Float8::kCut - 16)) + (1u << (Float8::kCut - 17)); }
    LT_METHOD void put_four(int i, u32 a, u32 b, u32 c, u32 d) {
      word[i / 4] = __byte_perm(__byte_perm(a, b, 0x40), __byte_perm(c, d, 0x40), 0x5410);
    }
  };
};

// Codes of 4 bits by the portable kernels, on tables of 16 and 32 entries, in whose look-ups no two lanes conflict.
template <>
struct LaneCodec<Dynamic4> {
  using Shared = Dynamic4::Tables;
  LT_FN void fill(Shared& shared, const void* tables) {
    for (u32 i = threadIdx.x; i < 2 * Dynamic4Table::kBuckets; i += blockDim.x) {
      const u32 at = i % Dynamic4Table::kBuckets;
      const Dynamic4Table& from = static_cast<const Dynamic4::Tables*>(tables)->side[i / Dynamic4Table::kBuckets];
      Dynamic4Table& to = shared.side[i / Dynamic4Table::kBuckets];
      to.below[at] = from.below[at], to.nearest[at] = from.nearest[at];
      if (at < 16) to.value[at] = from.value[at], to.slope[at] = from.slope[at], to.intercept[at] = from.intercept[at];
      if (at == 0) to.least = from.least;
    }
  }

  template <bool kSigned>
  struct Codes {
    u32 word[kLaneElements / 8];
    LT_FN float scale(float absmax) { return Dynamic4::block_scale<kSigned>(absmax).scale; }
    LT_FN float inverse(float absmax) { return Dynamic4::block_scale<kSigned>(absmax).inverse; }
    LT_FN float factor(float absmax) { return inverse(absmax); }
    LT_METHOD float get(const Shared& shared, int i) const {
      return Dynamic4::decode<kSigned>(shared, word[i / 8] >> 4 * (i % 8));
    }
    LT_METHOD void encode_four(const Shared& shared, int i, const float* value, float inverse) {
      put_four(shared, i, value, inverse, false, {0, 0});
    }
    template <bool>
    LT_METHOD void round_four(const Shared& shared, int i, const float* value, float inverse, const u32 (&random)[2]) {
      put_four(shared, i, value, inverse, true, random);
    }

   private:
    LT_METHOD void put_four(const Shared& shared, int i, const float* value, float inverse, bool stochastic,
                            const u32 (&random)[2]) {
      u32 four = 0;
#pragma unroll
      for (int n = 0; n < 4; ++n)
        four |= Dynamic4::encode_with<kSigned>(shared, value[n], inverse, stochastic,
                                               n % 2 ? random[n / 2] >> 16 : random[n / 2] & 0xffffu)
                << 4 * n;
      word[i / 8] = i % 8 ? word[i / 8] | four << 16 : four;
    }
  };
};

// Each kind of state as its codec has it.
template <>
struct LaneCodec<Mixed12> {
  struct Shared {
    LaneCodec<Dynamic8>::Shared eight;
    LaneCodec<Dynamic4>::Shared four;
    LT_METHOD operator const LaneCodec<Dynamic8>::Shared&() const { return eight; }
    LT_METHOD operator const LaneCodec<Dynamic4>::Shared&() const { return four; }
  };
  LT_FN void fill(Shared& shared, const void* tables) {
    const auto* const of = static_cast<const Mixed12::Tables*>(tables);
    LaneCodec<Dynamic8>::fill(shared.eight, &of->eight);
    LaneCodec<Dynamic4>::fill(shared.four, &of->four);
  }
  template <bool kSigned>
  using Codes = typename LaneCodec<std::conditional_t<kSigned, Dynamic4, Dynamic8>>::template Codes<kSigned>;
};
