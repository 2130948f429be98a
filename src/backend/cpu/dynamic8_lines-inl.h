// The AVX2 encoder of dynamic8 computes ranks without a lookup: within a decade of the map entries are equally spaced,
// so the rank is a linear function of the value.
//
// Decade i (0..6) covers values up to joint[i] and holds count[i] entries at 10^(i-6) (0.1 + 0.9 (k + 0.5) / count);
// "decade" 7 is the entry 1. With z = a * slope + 8/9, which runs from 1 to 2 over the entries of a decade,
//   floor(z * count) = rank, for second moments rank + 1,
// is exact unless z * count is within kGuard / 2^16 of an integer: rounding of the coefficients, the two fused
// operations and the map shifts it by at most 1 / 2^16 (computed at every midpoint). There the portable code decides,
// for about 0.4 % of tiles of 64. A test compares the two over every float.
#if HWY_TARGET == HWY_AVX2

struct Dynamic8Lines {
  static constexpr float kUnit = 65536, kGuard = 2;
  static constexpr u32 kFraction = 0x10000 - 2 * static_cast<u32>(kGuard);  // bits that are 0 near an integer
  static constexpr float kIntercept = 8.f / 9;
  static constexpr float kLargestZ = 2 - 0.5f / 128;  // values past a decade's last entry keep that entry's rank
  // Smaller magnitudes count as this one, which is below the first midpoint (signed) or has rank 1 (second moments).
  static constexpr float lowest(bool is_signed) { return is_signed ? 0x1p-23f : 0x1p-22f; }
  // The summand of z * count * 2^16; ranks of second moments start at 1.
  static constexpr float offset(bool is_signed) { return kGuard - (is_signed ? 0 : kUnit); }

  alignas(32) float joint[8];            // midpoint between the last entry of decade i and the first of the next
  alignas(32) float slope[8], count[8];  // count is scaled by 2^16
};

template <bool kSigned>
const Dynamic8Lines& dynamic8_lines() {
  static const Dynamic8Lines lines = [] {
    const float* map = codec_tables<Dynamic8>().side[kSigned].value + (kSigned ? Dynamic8::kSignedZero : 0u);
    const auto midpoint = [map](int rank) { return (map[rank] + map[rank + 1]) * 0.5f; };
    Dynamic8Lines t;
    for (int i = 0; i < 7; ++i) {
      const int next = Dynamic8::first_rank(kSigned, i + 1), count = next - Dynamic8::first_rank(kSigned, i);
      t.joint[i] = midpoint(next - 1);
      t.slope[i] = static_cast<float>(1 / (0.9 * power(10, i - 6)));
      t.count[i] = static_cast<float>(count) * Dynamic8Lines::kUnit;
    }
    // Below the first midpoint the rank is 0: the line of decade 0, which has one entry, reaches 1 there.
    if (kSigned) t.slope[0] = 1 / (9 * midpoint(0));
    // One entry: the line only has to keep z * count within [128, 129) (signed) or [256, 257) for values up to 1.
    t.joint[7] = __builtin_inff();
    t.slope[7] = kSigned ? 0.1152f : 0.113f;
    t.count[7] = (kSigned ? 128 : 256) * Dynamic8Lines::kUnit;
    return t;
  }();
  return lines;
}

#endif
