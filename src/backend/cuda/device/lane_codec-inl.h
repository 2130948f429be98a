// Codecs of the hot path: 16 codes of a lane, for states that HotBlocks (step-inl.h) lets through. Bits are those of
// the dialect's codecs. Included in the namespace of a .cu file after packed-inl.h. LaneCodec<C>::
//   Shared              tables of a thread block in shared memory
//   Codes<kSigned>      load, get(i): in units of the scale, encode_two(i, two values, factor), store
//   factor(inverse)     what encode_two multiplies values by, of the reciprocal of the block's absmax
template <class C>
struct LaneCodec;

// Without scales, values are stored as an element type is. (A second moment in range never rounds to 0 in bfloat16.)
template <class T>
struct PlainLaneCodec {
  struct Shared {};
  LT_FN void fill(Shared&, const void*) {}
  LT_FN float factor(bool, float) { return 1.f; }
  template <bool kSigned>
  struct Codes : Packed<T> {
    LT_METHOD float get(const Shared&, int i) const { return Packed<T>::get(i); }
    LT_METHOD void encode_four(const Shared&, int i, const float* value, float) {
      this->set_two(i, value[0], value[1]);
      this->set_two(i + 2, value[2], value[3]);
    }
  };
};
template <>
struct LaneCodec<Fp32> : PlainLaneCodec<float> {};
template <>
struct LaneCodec<Bf16> : PlainLaneCodec<bf16> {};

// Bytes are taken out by permutations: shifts and masks would be merged with those of addresses, and be three instead
// of two.
//
// dynamic8 by one addition for each code: sum = entry[u >> 16] + u has the code in its byte 2, where u are the float
// bits of the magnitude, or something of their order, and an entry is the dialect's less what u >> 16 itself adds.
//
// Second moments: u are the bits of x 2^22, at least 1 where x > 0 (the first bucket), and those of the float below 1
// where x = 0, in a bucket before the first, whose codes are 0.
// Signed: u are the bits of x 2^-104, so that the first bucket begins at 2^-126 and denormals, however much they lose,
// are what is below it. Negative values have the complement of their magnitude's bits, as an integer -(magnitude + 1),
// which is where the dialect puts a negative value's ties; buckets go on below 0.
template <>
struct LaneCodec<Dynamic8> {
  static constexpr u32 kBuckets = Dynamic8Table::kLastKey - Dynamic8Table::kFirstKey + 1;
  static constexpr int kUp = 22, kDown = -104;  // exponents of the factors 2^22 and 2^-104
  static constexpr int kFirstUp = static_cast<int>(Dynamic8Table::kFirstKey) + (kUp << 7) - 1;  // with that of zero
  static constexpr int kFirstDown = static_cast<int>(Dynamic8Table::kFirstKey) + kDown * 128;
  static constexpr int kMagnitudes = kFirstDown + static_cast<int>(kBuckets);
  static_assert(kFirstUp == 0x3f7f && kFirstDown == 0x80);

  struct Shared {
    float value[2][256];              // as the dialect's, [0] unsigned, [1] signed
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
  }

  // Exact: a power of two, and reciprocals in range.
  LT_FN float factor(bool is_signed, float inverse) { return inverse * (is_signed ? 0x1p-104f : 0x1p22f); }

  template <bool kSigned>
  LT_FN u32 sum(const Shared& shared, float value, float factor) {
    const float x = value * factor;
    if constexpr (kSigned) {
      const u32 u = bits(x) ^ (static_cast<u32>(static_cast<int>(bits(x)) >> 31) & 0x7fffffffu);
      return shared.code[static_cast<int>(__byte_perm(u, 0, 0xbb32)) + kMagnitudes] + u;
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

  template <bool kSigned>
  struct Codes {
    u32 word[kLaneElements / 4];
    LT_METHOD float get(const Shared& shared, int i) const {
      return shared.value[kSigned][__byte_perm(word[i / 4], 0, 0x4440u + i % 4)];
    }
    LT_METHOD void encode_four(const Shared& shared, int i, const float* value, float factor) {
      const u32 low = __byte_perm(sum<kSigned>(shared, value[0], factor), sum<kSigned>(shared, value[1], factor), 0x62);
      const u32 high =
          __byte_perm(sum<kSigned>(shared, value[2], factor), sum<kSigned>(shared, value[3], factor), 0x62);
      word[i / 4] = __byte_perm(low, high, 0x5410);
    }
  };
};
