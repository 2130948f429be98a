// Exact sums of floats, for every instruction set. Added to 1.5 * 2^52 quanta, a double that is a multiple of a quantum
// changes that number's bits by as many units as it has quanta, so integers that add up bits count quanta. All floats
// of kSumWindow binades are multiples of one quantum.

#if HWY_TARGET == HWY_SCALAR
using vi = uint64_t;
LT_FN vi no_bits() { return 0; }
LT_FN vi add_bits(vi sum, vd x) {
  vi bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return sum + bits;
}
LT_FN int64_t sum_since(vi now, uint64_t then) { return static_cast<int64_t>(now - then); }
LT_FN bool any_above(vu x, u32 limit) { return x > limit; }
LT_FN bool any_below(vu x, u32 limit) { return x < limit; }
#else
using vi = hn::Vec<decltype(kI64)>;
LT_FN vi no_bits() { return hn::Zero(kI64); }
LT_FN vi add_bits(vi sum, vd x) { return hn::Add(sum, hn::BitCast(kI64, x)); }
LT_FN int64_t sum_since(vi now, uint64_t then) {
  return hn::GetLane(hn::SumOfLanes(kI64, hn::Sub(now, hn::Set(kI64, static_cast<int64_t>(then)))));
}
LT_FN bool any_above(vu x, u32 limit) { return !hn::AllFalse(kU, hn::Gt(x.v, hn::Set(kU, limit))); }
LT_FN bool any_below(vu x, u32 limit) { return !hn::AllFalse(kU, hn::Lt(x.v, hn::Set(kU, limit))); }
#endif

// A term is less than 2^kTermBits quanta either way, and the terms of a block that a lane adds are less than 2^51. A
// float's last bit is 23 below its exponent.
inline constexpr int kTermBits = 51 - __builtin_ctz(kBlock / kLanes), kSumWindow = kTermBits - 23;
// Binades kept free above the largest term so far, so that a slightly larger one moves nothing.
inline constexpr int kSpareBinades = 2;

// Keeps the largest magnitude, as float bits, and, minus 1, the smallest that is not 0.
HWY_INLINE void see(vf x, vu& most, vu& least) {
  const vu magnitude = bits(abs(x));
  most = max(most, magnitude);
  least = min(least, magnitude - vu(1u));  // 0 wraps to the largest number
}

// The sum of one term over a run.
static_assert(uint64_t{kMostSummed} << 51 <= uint64_t{1} << 63);  // bits of a signed count
class RunSum {
 public:
  HWY_INLINE RunSum() : sum_(no_bits()) { begin(0); }

  // Adds a block's n values, whole vectors, which see() has seen, and may overwrite them. Sums that are negative, with
  // all before them, go to `below`; others go to `above`.
  HWY_INLINE void add_block(float* values, int n, vu most, vu least, ExactSum& below, ExactSum& above) {
    while (HWY_UNLIKELY(!holds(most, least))) {
      const u32 largest = reduce_max(most);
      if (largest >= kInfinity) return above.add(__builtin_inff(), 0);  // makes the sum NaN
      finish(below, above);
      begin(top_of(largest) + kSpareBinades);
      if (!holds(most, least)) add_large(values, n, most, least);
    }
    vd low = all_lanes(0), high = all_lanes(0);
    for (int i = 0; i < n; i += kLanes) {
      low = add(low, lower_half(load(values + i)));
      if constexpr (kHasUpper) high = add(high, upper_half(load(values + i)));
    }
    take(low, high);
  }

  HWY_INLINE void finish(ExactSum& below, ExactSum& above) {
    const int64_t quanta = sum_since(sum_, additions_ * start());
    (quanta < 0 ? below : above).add_count(static_cast<uint64_t>(quanta < 0 ? -quanta : quanta), top_ - kTermBits);
    sum_ = no_bits(), additions_ = 0;
  }

 private:
  HWY_INLINE bool holds(vu most, vu least) const { return !any_above(most, most_) && !any_below(least, least_); }

  HWY_INLINE void begin(int top) {
    top_ = top, most_ = power_bits(top) - 1, least_ = power_bits(top - kSumWindow) - 1;
    const uint64_t bits = start();
    double from;
    __builtin_memcpy(&from, &bits, sizeof from);
    from_ = all_lanes(from);
  }

  HWY_INLINE void take(vd low, vd high) {
    sum_ = add_bits(sum_, add(from_, low));
    if constexpr (kHasUpper) sum_ = add_bits(sum_, add(from_, high));
    additions_ += kHasUpper ? 2 : 1;
  }

  // Adds the values that are large enough, and leaves the others, with 0 in place of those.
  HWY_NOINLINE void add_large(float* values, int n, vu& most, vu& least) {
    const vf smallest = as_float(vu(least_ + 1));
    most = vu(0u), least = vu(0xffffffffu);
    for (int i = 0; i < n; i += kLanes) {
      const vf x = load(values + i), rest = select(abs(x) < smallest, x, vf(0.f)), large = x - rest;  // x or 0
      take(lower_half(large), upper_half(large));
      store(rest, values + i);
      see(rest, most, least);
    }
  }

  // 1.5 * 2^52 quanta, as the bits of a double.
  uint64_t start() const { return static_cast<uint64_t>(1023 + 52 + top_ - kTermBits) << 52 | uint64_t{1} << 51; }

  vd from_;  // start()
  vi sum_;
  uint64_t additions_ = 0;  // to each lane
  int top_;                 // terms are below 2^top
  u32 most_, least_;
};
