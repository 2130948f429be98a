// The AVX-512 encoders of dynamic8 compute a rank and its fraction without a lookup in the table of entries.
//
// Decade i (0..6) of the map covers (10^(i-7), 10^(i-6)] with n = 2^i entries, of ranks n to 2 n - 1, evenly spaced:
//   rank + 1/2 = n (8/9 + a 10^(6-i) / 0.9)
// for magnitude a (second moments: n = 2^(i+1), and the left side is rank + 1). The lines of two decades meet at their
// border, at 2 n - 1/2. With two more lines, from 0 to the first entry (signed) and from the second-to-last entry to 1,
// they form the roof. The portable stochastic_rank differs from the roof only between the last entry of a decade and
// the first of the next, where it is a straight line. Relative to that line, the roof's lower half is 1/6 of the way
// and its upper half 5/6, so for ranks one less than a power of two, with the fraction f of the roof,
//   p = f - 2/3 min(f, 1 - f).
//
// Only rounding makes this inexact. In units of 2^-16 of a rank, the result lies 1 to 12 above the portable definition
// (computed over all floats, by a program that is not kept), because kLift raises the intercepts; rounding of value *
// inverse moves it by less than 1. So only an element whose sum of p and the random bits is within kUnsure of a carry
// can get another code. The portable code decides those, one in 70 tiles of 64. Rounding to nearest is the same with
// 1/2 as the random bits. Tests compare both with the portable code over dense sweeps.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL

template <bool kSigned>
struct Dynamic8Roof {
  // Added to signed magnitudes, so that all exponents fit into the 32 rows. Second moments are clamped instead.
  static constexpr float kShift = kSigned ? 0x1p-30f : 0.f;
  // Sums with 2^23 are floats with the rank in their lower bits: in units of 2^-16, or 2^-15 for the larger ranks of
  // second moments.
  static constexpr float kMagic = 0x1p23f, kUnits = kSigned ? 0x1p16f : 0x1p15f;
  static constexpr int kLift = 5, kUnsure = 14;

  // Row e (exponent & 31) holds the line that applies at the start of binade e. If the line ends inside the binade,
  // adding `carry` to the bits of a value past its end carries into the exponent and so selects row e + 1.
  alignas(64) u32 carry[32];
  alignas(64) float slope[32], intercept[32];
  // Constants for all lanes. Loading them is free, but compilers would rebuild them in general registers.
  alignas(64) u8 one[64], middle[64];
  alignas(64) u16 two_thirds[32], unsure[32];
  alignas(64) float shift[16], lowest[16];

  explicit Dynamic8Roof(const Dynamic8Table& map) {
    const float* entry = map.value + (kSigned ? Dynamic8::kSignedZero : 0u);
    const int last = kSigned ? 127 : 254;  // the rank below 1's
    int line = kSigned ? -1 : 0;           // -1: up to the first entry; 0 to 6: decades; 7: up to 1
    for (int binade = 127 - 30; binade <= 127; ++binade) {
      const int decade = line < 0 ? 0 : line;
      const double n = Dynamic8::first_rank(kSigned, decade) + !kSigned;
      double end = power(10, decade - 6), slope_of = n / (0.9 * end), at_zero = n * 8 / 9 - 0.5;
      if (line == -1) slope_of = 1 / double{entry[1]}, at_zero = 0, end = entry[1];
      if (line == 6) end = entry[last];
      if (line == 7) slope_of = 1 / (1 - double{entry[last]}), at_zero = last + 1 + !kSigned - slope_of, end = 2;
      const int row = binade & 31;
      slope[row] = static_cast<float>(slope_of * kUnits);
      intercept[row] = static_cast<float>((at_zero - slope_of * kShift + kLift * 0x1p-16) * kUnits + kMagic);
      const u32 joint = bits(static_cast<float>(end + kShift));
      const bool ends = static_cast<int>(joint >> 23) == binade;
      carry[row] = ends ? 0x7fffffu - (joint & 0x7fffffu) : 0;
      line += ends;
    }
    // The row of 0, for second moments: code 0, whose rank is -1.
    slope[0] = 0, intercept[0] = kMagic + kUnits, carry[0] = 0;
    for (int i = 0; i < 64; ++i) one[i] = 1, middle[i] = Dynamic8::kSignedZero;
    for (int i = 0; i < 32; ++i) two_thirds[i] = 43691, unsure[i] = kUnsure;
    for (int i = 0; i < 16; ++i) shift[i] = kShift, lowest[i] = map.lowest;
  }
};

#endif
