// The codecs of the hot path, for a lane's 16 codes of states that LaneBlocks (step-inl.h) accepts. They give the bits
// of the portable codecs. Included in the namespace of a .cu file after packed-inl.h. LaneCodec<C>::
//   Shared                     tables of a thread block in shared memory
//   Codes<kSigned>             words as memory has them; get(i): in units of the scale
//     encode_four(i, ...)      four values, to nearest, times factor(inverse(the block's absmax))
//     round_four<kNormal>(...) four values, stochastically, times inverse(absmax); random: as LaneRandom gives them;
//                              kNormal: none is a denormal number
//     inverse_of_small(absmax, values)  the inverse of any absmax, with whose product values then give their codes
//     scale(absmax)            what is stored with the block
template <class C>
struct LaneCodec;

// The codes of all states of a rule.
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

// Codecs without scales store values like an element type. (In bfloat16, a second moment in range never rounds to 0.)
struct NoTables {};

template <class T>
struct PlainCodes {
  u32 word[kLaneElements * sizeof(T) / 4];
  LT_FN float factor(float) { return 1.f; }
  LT_FN float inverse(float) { return 1.f; }
  LT_FN float inverse_of_small(float, const float (&)[kLaneElements]) { return 1.f; }
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

// Permutations extract bytes, because the compiler would merge shifts and masks with those of addresses into three
// instructions instead of two.

// float8 by arithmetic. Let z be the bits of half of the smallest normal number, and t the float with bits (c << 19) +
// z. Code c stands for the lesser of t and 2 t minus the smallest normal number. Encoding rounds once and the portable
// code twice, with the same result: halving rounds only below 2^-125, and there the sum has z's bits.
template <>
struct LaneCodec<Float8> {
  using Shared = NoTables;
  LT_FN void fill(NoTables&, const void*) {}
  // `below` is added to the bits that are cut off.
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
    LT_FN float inverse_of_small(float absmax, const float (&)[kLaneElements]) { return inverse(absmax); }
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

// 4-bit codes by the portable kernels, on tables of 16 and 32 entries, whose lookups cause no bank conflicts.
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
    LT_FN float inverse_of_small(float absmax, const float (&)[kLaneElements]) { return inverse(absmax); }
    LT_FN float factor(float inverse) { return inverse; }
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
