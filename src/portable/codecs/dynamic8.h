// dynamic8: bitsandbytes' 8-bit dynamic map with one float32 scale (the absmax) per block of 256 within a row
// (Dettmers et al., arXiv 2110.02861). Signed states use 127 negative entries, 0, 127 positive ones and 1; second
// moments use the unsigned map of 256 entries.
//
// Nearest: entry i is left for i + 1 when x = value * (1 / absmax) is above the midpoint (c[i] + c[i+1]) / 2 computed
// in float32; a tie keeps the lower index. And: a positive second moment never encodes to 0. (In a block whose values
// span many decades the smallest would be stored as 0, and the next step would divide by eps alone.)
#include "portable/codecs/dynamic8_map.h"

struct Dynamic8Table {
  // Buckets of floats that share their top 16 bits: 7 bits of mantissa are enough for a bucket to hold at most one
  // midpoint. From that of 2^-22, which is above the unsigned map's first midpoint (1.6e-7: all positive values are
  // code 1 or above) and below the signed map's (2.75e-7), to that of 1.
  static constexpr u32 kFirstKey = 0x3480u, kLastKey = 0x3f80u;
  float value[256];                      // decoded value of a code, in units of absmax
  u32 bucket[kLastKey - kFirstKey + 1];  // (rank below the bucket << 16) + (0xffff - low half of the midpoint, if any)
};

struct Dynamic8 {
  using Code = u8;
  static constexpr const char* kName = "dynamic8";
  static constexpr bool kScaled = true;
  static constexpr float kError = 0x1p-5f;  // relative, of a typical value at most
  static constexpr float kTop = 1.f;
  static constexpr u32 kSignedZero = 127;  // code of 0; the rank of a magnitude counts from here, both ways
  struct Tables {
    Dynamic8Table side[2];
  };  // [0] unsigned, [1] signed

  template <bool kSigned, class U>
  LT_FN auto decode(const Tables& t, U code) {
    return gather(t.side[kSigned].value, code);
  }

  template <bool kSigned, class F, class U>
  LT_FN U encode(const Tables& t, F value, F inverse, const Rounding&, U /*index*/) {
    const F x = value * inverse;  // at most 1, or so little above that it is in the last bucket
    const U sign = bits(x) >> 31;
    // A midpoint itself belongs to the lower index: for negative values that is the larger magnitude.
    const F magnitude = kSigned ? as_float((bits(x) & U(0x7fffffffu)) + sign) : x;
    const U u = bits(max(magnitude, F(0x1p-22f)));  // a NaN becomes the floor
    const U rank = (gather(t.side[kSigned].bucket, (u >> 16) - U(Dynamic8Table::kFirstKey)) + (u & U(0xffffu))) >> 16;
    if constexpr (kSigned) {
      const U code = (rank ^ (U(0u) - sign)) + sign + U(kSignedZero);  // kSignedZero +- rank
      return code + (code >> 31);                                      // there is no entry at -1: -1 becomes 0
    } else {
      return select(value > F(0.f), rank, U(0u));
    }
  }

  // Fills the tables from the constants. Host only; once per process.
  LT_HOST_FN void make_tables(Tables& t) {
    for (int s = 0; s < 2; ++s) {
      const u32* map = s ? kDynamic8SignedBits : kDynamic8UnsignedBits;
      const u32 zero = s ? kSignedZero : 0, ranks = 255 - zero;
      Dynamic8Table& table = t.side[s];
      for (int i = 0; i < 256; ++i) table.value[i] = as_float(map[i]);
      u32 rank = s ? 0 : 1;  // of the first bucket's lower end
      for (u32 key = Dynamic8Table::kFirstKey; key <= Dynamic8Table::kLastKey; ++key) {
        const u32 midpoint =
            rank < ranks ? bits((table.value[zero + rank] + table.value[zero + rank + 1]) * 0.5f) : 0x7f800000u;
        const bool here = (midpoint >> 16) == key;
        table.bucket[key - Dynamic8Table::kFirstKey] = (rank << 16) + (here ? 0xffffu - (midpoint & 0xffffu) : 0u);
        rank += here;
      }
    }
  }
};
