// Exact sums of a block of floats, for every instruction set. As for squares of gradients (gradient_doubles-inl.h), a
// value is split into multiples of two quanta, and the parts are added in doubles that hold their sums exactly.

// Quanta below 2^top. A value's last bit is 23 below its exponent, so kWindow binades fit.
constexpr int sum_quantum(int top, int k) { return top - kPartBits * (k + 1) + 1; }
inline constexpr int kSumWindow = 2 * kPartBits - 24;

class LaneTerms {
 public:
  explicit LaneTerms(int top) : first_(all_lanes(start(top, 0))), second_(all_lanes(start(top, 1))) {}

  HWY_INLINE void add_value(vd x) {
    const vd first = add(first_, x);
    second_ = add(sub(x, sub(first, first_)), second_);
    first_ = first;
  }
  HWY_INLINE void add_to(int64_t (&count)[2], int top) const {
    count[0] += units_since(first_, start(top, 0));
    count[1] += units_since(second_, start(top, 1));
  }

 private:
  static double start(int top, int k) {  // 1.5 * 2^52 quanta
    const uint64_t bits = static_cast<uint64_t>(1023 + 52 + sum_quantum(top, k)) << 52 | uint64_t{1} << 51;
    double value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
  }

  vd first_, second_;
};

// Values of which some are far smaller than others, or not finite.
static HWY_NOINLINE void add_one_by_one(const float* values, int n, ExactSum& below, ExactSum& above) {
  for (int i = 0; i < n; ++i) (values[i] < 0 ? below : above).add(__builtin_fabsf(values[i]), 0);
}

// Adds the magnitudes of a block's n values, whole vectors, of the negative ones to `below`.
HWY_INLINE void add_block(const float* values, int n, vu largest, vu smallest, ExactSum& below, ExactSum& above) {
  const u32 most = reduce_max(largest);
  if (most == 0) return;
  const int top = most < kInfinity ? top_of(most) : 0;
  if (HWY_UNLIKELY(most >= kInfinity || reduce_min(smallest) < power_bits(top - kSumWindow) - 1))
    return add_one_by_one(values, n, below, above);
  LaneTerms lower(top), upper(top);
  for (int i = 0; i < n; i += kLanes) {
    const vf x = load(values + i);
    lower.add_value(lower_half(x));
    if constexpr (kHasUpper) upper.add_value(upper_half(x));
  }
  int64_t count[2] = {};
  lower.add_to(count, top);
  if constexpr (kHasUpper) upper.add_to(count, top);
  // Both counts get one sign, that of the sum.
  count[0] += count[1] >> kPartBits;
  count[1] -= (count[1] >> kPartBits) * (int64_t{1} << kPartBits);
  const bool negative = count[0] < 0;
  if (negative) {
    count[0] = -count[0] - (count[1] ? 1 : 0);
    if (count[1]) count[1] = (int64_t{1} << kPartBits) - count[1];
  }
  ExactSum& to = negative ? below : above;
  for (int k = 0; k < 2; ++k) to.add_count(static_cast<uint64_t>(count[k]), sum_quantum(top, k));
}
