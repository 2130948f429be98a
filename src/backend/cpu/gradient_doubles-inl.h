// Exact sums of squares in doubles, for every instruction set. A double holds the square of a float exactly. A square
// is split into two or three parts, multiples of ever smaller quanta, and each part goes into a separate sum, a double
// that holds it exactly: (sum + x) - sum is x rounded to the sum's quantum. The quanta derive from a power of two above
// all magnitudes of a chunk.

// Vectors of doubles, each for half a vector of floats. With fused multiply-add, some additions use it to balance the
// processor's ports. All results are exact, so both forms give the same bits.
#if HWY_TARGET == HWY_SCALAR
using vd = double;
inline constexpr bool kHasUpper = false;
LT_FN vd lower_half(vf x) { return static_cast<double>(x); }
LT_FN vd upper_half(vf) { return 0; }
LT_FN vd all_lanes(double x) { return x; }
LT_FN vd add(vd a, vd b) { return a + b; }
LT_FN vd add_fused(vd a, vd b) { return a + b; }
LT_FN vd sub(vd a, vd b) { return a - b; }
LT_FN vd sub_fused(vd a, vd b) { return a - b; }
LT_FN vd add_square(vd sum, vd x) { return sum + x * x; }
LT_FN vd square_less(vd x, vd less) { return x * x - less; }
LT_FN int64_t units_since(vd now, double then) {
  int64_t a, b;
  __builtin_memcpy(&a, &now, sizeof a);
  __builtin_memcpy(&b, &then, sizeof b);
  return a - b;
}
LT_FN vu min(vu a, vu b) { return a < b ? a : b; }
LT_FN u32 reduce_min(vu x) { return x; }
#else
inline constexpr hn::ScalableTag<double> kD;
inline constexpr hn::ScalableTag<int64_t> kI64;
inline constexpr hn::Half<decltype(kF)> kHalfF;
inline constexpr bool kHasUpper = true;
using vd = hn::Vec<decltype(kD)>;
LT_FN vd lower_half(vf x) { return hn::PromoteTo(kD, hn::LowerHalf(kHalfF, x.v)); }
LT_FN vd upper_half(vf x) { return hn::PromoteTo(kD, hn::UpperHalf(kHalfF, x.v)); }
LT_FN vd all_lanes(double x) { return hn::Set(kD, x); }
LT_FN vd add(vd a, vd b) { return hn::Add(a, b); }
LT_FN vd add_fused(vd a, vd b) { return hn::MulAdd(a, all_lanes(1), b); }
LT_FN vd sub(vd a, vd b) { return hn::Sub(a, b); }
LT_FN vd sub_fused(vd a, vd b) { return hn::NegMulAdd(b, all_lanes(1), a); }
LT_FN vd add_square(vd sum, vd x) { return hn::MulAdd(x, x, sum); }
LT_FN vd square_less(vd x, vd less) { return hn::MulSub(x, x, less); }
// Within one binade of doubles, the difference of the bits counts units.
LT_FN int64_t units_since(vd now, double then) {
  return hn::GetLane(hn::SumOfLanes(kI64, hn::Sub(hn::BitCast(kI64, now), hn::BitCast(kI64, all_lanes(then)))));
}
LT_FN vu min(vu a, vu b) { return vu(hn::Min(a.v, b.v)); }
LT_FN u32 reduce_min(vu x) { return hn::GetLane(hn::MinOfLanes(kU, x.v)); }
#endif

template <class G>
inline constexpr int kStoredBits = 23;  // of a mantissa
template <>
inline constexpr int kStoredBits<bf16> = 7;
template <>
inline constexpr int kStoredBits<f16> = 10;
// Squares of 48 bits need three parts; squares of 16 and 22 bits reach as wide a range of magnitudes with two.
template <class G>
inline constexpr int kParts = kStoredBits<G> > 10 ? 3 : 2;

// Adds squares below 4^top. (Separate members, because compilers do not keep an array of them in registers.)
template <class G>
class LaneSums {
 public:
  explicit LaneSums(int top) : first_(all_lanes(start(top, 0))), second_(all_lanes(start(top, 1))) {
    third_ = all_lanes(start(top, 2));
  }

  HWY_INLINE void add_squares(vd x) {
    const vd first = add_square(first_, x), rest = square_less(x, sub(first, first_));
    first_ = first;
    if constexpr (kParts<G> == 2) {
      second_ = add(rest, second_);
    } else {
      const vd second = add(second_, rest);
      third_ = add_fused(sub_fused(rest, sub(second, second_)), third_);
      second_ = second;
    }
  }

  void add_to(int64_t (&count)[kParts<G>], int top) const {
    count[0] += units_since(first_, start(top, 0));
    count[1] += units_since(second_, start(top, 1));
    if constexpr (kParts<G> == 3) count[2] += units_since(third_, start(top, 2));
  }

 private:
  // Returns 1.5 * 2^52 quanta.
  static double start(int top, int k) {
    const uint64_t bits = static_cast<uint64_t>(1023 + 52 + quantum(top, k)) << 52 | uint64_t{1} << 51;
    double value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
  }

  vd first_, second_, third_;
};

template <class G>
class DoubleSums {
 public:
  // The last bit of a square is 2 kStoredBits below twice the exponent, which must not be below the last quantum.
  static Window window(int top) {
    const int finest = quantum(0, kParts<G> - 1);  // odd: its half is rounded up
    return {top, power_bits(top + (finest + 1) / 2 + kStoredBits<G>), power_bits(top)};
  }

  explicit DoubleSums(int top) : top_(top), lower_(top), upper_(top) {}

  HWY_INLINE void add_squares(vf magnitude) {
    lower_.add_squares(lower_half(magnitude));
    if constexpr (kHasUpper) upper_.add_squares(upper_half(magnitude));
  }

  void add_to(ExactSum& total) const {
    int64_t count[kParts<G>] = {};
    lower_.add_to(count, top_);
    if constexpr (kHasUpper) upper_.add_to(count, top_);
    add_parts(count, top_, total);
  }

 private:
  int top_;
  LaneSums<G> lower_, upper_;
};
