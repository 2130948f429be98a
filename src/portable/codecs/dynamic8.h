// dynamic8: bitsandbytes' 8-bit dynamic map with one float32 scale (the absmax) per block of 256 within a row (Dettmers
// et al., arXiv 2110.02861). Signed states use 127 negative entries, 0, 127 positive entries and 1; second moments use
// the unsigned map of 256 entries.
//
// Nearest: x = value * (1 / absmax) takes entry i + 1 rather than i if it is above the midpoint (c[i] + c[i+1]) / 2,
// computed in float32; a tie keeps the lower index. A positive second moment never encodes to 0: in a block that spans
// many decades, the smallest values would become 0, and the next step would divide by eps alone.
//
// Stochastic: x becomes one of the two entries around it, with probabilities that make the decoded mean equal x. y(x)
// has rank r at entry r; the rank is the floor of y plus a random fraction of 1. y is piecewise straight, because a
// decade's entries are evenly spaced: one piece per decade, one per joint of two decades, one up to the first entry,
// and one from the second-to-last entry to 1. Up to that entry the slopes fall, so y(x) is the least of all pieces.
// That minimum, each piece in float32 as x * slope + intercept, is the definition, however the relevant pieces are
// found.
#include "portable/codecs/dynamic8_map.h"

struct Dynamic8Table {
  // A bucket holds the floats that share their top 16 bits: with 7 bits of mantissa it has at most one midpoint. The
  // first bucket is at 2^-22, above the unsigned map's first midpoint (1.6e-7: all positive values are code 1 or more)
  // and below the signed map's (2.75e-7); the last is at 1.
  static constexpr u32 kFirstKey = 0x3480u, kLastKey = 0x3f80u;
  float value[256];                      // decoded value of a code, in units of absmax
  u32 bucket[kLastKey - kFirstKey + 1];  // (rank below the bucket << 16) + (0xffff - low half of the midpoint, if any)

  // Lines for stochastic rounding, in units of 2^-16 of a rank, plus half a unit because truncation rounds down. For
  // each binade from kLowestRow's to that of 1, row (exponent & kRowMask) has the two pieces that can be least there.
  // If a decade begins inside a binade, adding `carry` to a value above the joint's middle carries into its exponent
  // and so selects the next row. The last row is the piece up to 1.
  static constexpr int kRows = 32;
  static constexpr u32 kRowMask = 31, kFirstExponent = 127 - 22, kLastExponent = 127;  // exponents
  static constexpr float kLowestRow = 0x1p-22f;
  alignas(64) u32 carry[kRows];
  alignas(64) float slope[kRows], intercept[kRows], joint_slope[kRows], joint_intercept[kRows];
  float lowest;  // the lowest second moment: it has rank 1 whatever is added
};

struct Dynamic8 {
  using Code = u8;
  static constexpr const char* kName = "dynamic8";
  static constexpr bool kScaled = true;
  static constexpr float kError = 0x1p-5f;  // bound on the relative error of typical values
  static constexpr u32 kSignedZero = 127;   // code of 0; magnitudes count up and down from here
  struct Tables {
    Dynamic8Table side[2];
  };  // [0] unsigned, [1] signed

  template <bool kSigned>
  LT_FN BlockScale block_scale(float absmax) {
    return absmax_scale(absmax, 1.f);
  }

  template <bool kSigned, class U>
  LT_FN auto decode(const Tables& t, U code) {
    return gather(t.side[kSigned].value, code);
  }

  // magnitude: |value * inverse|. random: 16 bits.
  template <bool kSigned, class F, class U>
  LT_FN U stochastic_rank(const Dynamic8Table& t, F magnitude, U random) {
    magnitude = max(magnitude, F(kSigned ? 0.f : t.lowest));  // a NaN becomes the least
    magnitude = select(magnitude < F(1.f), magnitude, F(1.f));
    const U u = bits(max(magnitude, F(Dynamic8Table::kLowestRow)));
    const U mask = U(Dynamic8Table::kRowMask);
    const U row = ((u + gather(t.carry, (u >> 23) & mask)) >> 23) & mask;
    const F decade = magnitude * gather(t.slope, row) + gather(t.intercept, row);
    const F joint = magnitude * gather(t.joint_slope, row) + gather(t.joint_intercept, row);
    return (truncate(select(decade < joint, decade, joint)) + random) >> 16;
  }

  template <bool kSigned, class F, class U>
  LT_FN U encode_with(const Tables& t, F value, F inverse, bool stochastic, U random) {
    const F x = value * inverse;  // at most 1, or so little above 1 that it is in the last bucket
    if (stochastic) {
      const U rank = stochastic_rank<kSigned>(t.side[kSigned], abs(x), random);
      if constexpr (!kSigned) return select(value > F(0.f), rank, U(0u));
      const U below = select(rank == U(kSignedZero + 1), U(0u), U(kSignedZero) - rank);  // there is no entry at -1
      return select(x < F(0.f), below, U(kSignedZero) + rank);
    }
    const U sign = bits(x) >> 31;
    // A midpoint belongs to the lower index: for negative values that is the larger magnitude.
    const F magnitude = kSigned ? as_float((bits(x) & U(0x7fffffffu)) + sign) : x;
    const U u = bits(max(magnitude, F(0x1p-22f)));  // a NaN becomes 2^-22
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
      u32 rank = s ? 0 : 1;  // rank of the first bucket's lower end
      for (u32 key = Dynamic8Table::kFirstKey; key <= Dynamic8Table::kLastKey; ++key) {
        const u32 midpoint =
            rank < ranks ? bits((table.value[zero + rank] + table.value[zero + rank + 1]) * 0.5f) : 0x7f800000u;
        const bool here = (midpoint >> 16) == key;
        table.bucket[key - Dynamic8Table::kFirstKey] = (rank << 16) + (here ? 0xffffu - (midpoint & 0xffffu) : 0u);
        rank += here;
      }
      make_lines(table, s != 0);
    }
  }

  // For making and testing tables.
  struct Line {
    float slope = 0, intercept = 0;
  };
  // The rank of a decade's first entry. Decade 7 has only the entry 1.
  LT_HOST_FN int first_rank(bool is_signed, int decade) { return is_signed ? 1 << decade : (2 << decade) - 1; }
  // Where decade + 1 begins, for decades 0 to 6. entry: the map from rank 0 on.
  LT_HOST_FN float decade_end(const float* entry, bool is_signed, int decade) {
    const int next = first_rank(is_signed, decade + 1);
    return decade == 6 ? entry[next - 1] : (entry[next - 1] + entry[next]) * 0.5f;
  }
  // The line through the entries of two ranks.
  LT_HOST_FN Line line(const float* entry, int low, int high) {
    const double slope = 65536.0 * (high - low) / (double{entry[high]} - double{entry[low]});
    return {float(slope), float(65536.0 * low - slope * double{entry[low]} + 0.5)};
  }

  // The line up to entry 1, which has this rank; exact there.
  LT_HOST_FN Line last_line(const float* entry, int rank) {
    const float slope = line(entry, rank - 1, rank).slope;
    return {slope, 65536.f * float(rank) - slope};
  }

 private:
  LT_HOST_FN void make_lines(Dynamic8Table& table, bool is_signed) {
    const float* entry = table.value + (is_signed ? kSignedZero : 0);
    const auto first = [=](int decade) { return first_rank(is_signed, decade); };
    const auto joint = [=](int decade) { return decade_end(entry, is_signed, decade); };
    for (int row = 0; row < Dynamic8Table::kRows; ++row)  // rows that stay 0 are never read
      table.carry[row] = 0,
      table.slope[row] = table.intercept[row] = table.joint_slope[row] = table.joint_intercept[row] = 0;
    int decade = 0;
    for (u32 key = Dynamic8Table::kFirstExponent; key <= Dynamic8Table::kLastExponent; ++key) {
      const u32 row = key & Dynamic8Table::kRowMask;
      const float begin = as_float(key << 23);
      const bool ends = decade < 7 && bits(joint(decade)) >> 23 == key;
      table.carry[row] = ends ? 0x7fffffu - (bits(joint(decade)) & 0x7fffffu) : 0;
      const int low = first(decade), high = decade < 7 ? first(decade + 1) - 1 : low;
      // The joint in reach of this row: the one after its decade, or the one before.
      Line of_joint = decade < 6 && 2 * begin > entry[high] ? line(entry, high, high + 1) : line(entry, low - 1, low);
      Line of_decade = low < high ? line(entry, low, high) : of_joint;
      if (is_signed && decade == 0) of_decade = line(entry, 0, 1), of_joint = line(entry, 1, 2);  // one entry only
      if (decade == 7) of_decade = of_joint = last_line(entry, low);
      table.slope[row] = of_decade.slope, table.intercept[row] = of_decade.intercept;
      table.joint_slope[row] = of_joint.slope, table.joint_intercept[row] = of_joint.intercept;
      decade += ends;
    }
    table.lowest = entry[1];
    while (!is_signed && stochastic_rank<false>(table, table.lowest, 0u) == 0)
      table.lowest = as_float(bits(table.lowest) + 1);
  }
};
