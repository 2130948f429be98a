// Integer and floating-point arithmetic, by the rules and corner cases that the PTX ISA states.
#include "ptx_support.h"

namespace ptx {
namespace {

constexpr uint32_t kInf = 0x7f800000, kMinusInf = 0xff800000, kNan = 0x7fffffff, kOne = 0x3f800000, kTiny = 1,
                   kMinusZero = 0x80000000, kLargest = 0x7f7fffff, kLeastNormal = 0x00800000;

TEST(PtxIntegers, AddMultiplyAndDivide) {
  check("add.s32 %o, %a, %b;", {{{0x7fffffff, 1}, 0x80000000}, {{5, 0xfffffffe}, 3}});
  check("sub.s64 %ow, %aw, %bw;", {{{0, 1}, ~uint64_t{0}}});
  check("mul.lo.s32 %o, %a, %b;", {{{0x10001, 0x10001}, 0x20001}});
  check("mul.wide.s32 %ow, %a, %b;", {{{0xffffffff, 7}, static_cast<uint64_t>(-7)}});
  check("mul.wide.u32 %ow, %a, %b;", {{{0xffffffff, 7}, 0x6fffffff9}});
  check("mul.wide.s16 %o, %ah, %bh;", {{{0xffff, 3}, 0xfffffffd}});
  check("mul.wide.u16 %o, %ah, %bh;", {{{0xffff, 3}, 0x2fffd}});
  check("mad.lo.s32 %o, %a, %b, %c;", {{{3, 5, 0xffffffff}, 14}});
  // Truncated towards zero; the remainder has the dividend's sign.
  check("div.s64 %ow, %aw, %bw;", {{{static_cast<uint64_t>(-7), 2}, static_cast<uint64_t>(-3)}});
  check("rem.s64 %ow, %aw, %bw;", {{{static_cast<uint64_t>(-7), 2}, static_cast<uint64_t>(-1)}});
  check("div.u32 %o, %a, %b;", {{{0xffffffff, 2}, 0x7fffffff}});
  check("div.u64 %ow, %aw, %bw;", {{{~uint64_t{0}, uint64_t{1} << 33}, 0x7fffffff}, {{5, 7}, 0}});
  check("rem.u32 %o, %a, %b;", {{{0xffffffff, 10}, 5}});
  check("min.s32 %o, %a, %b;", {{{0xffffffff, 1}, 0xffffffff}});
  check("min.u32 %o, %a, %b;", {{{0xffffffff, 1}, 1}});
  check("max.s64 %ow, %aw, %bw;", {{{~uint64_t{0}, 1}, 1}});
  check("neg.s64 %ow, %aw;", {{{1}, ~uint64_t{0}}});
  check("add.s16 %oh, %ah, %bh;", {{{0x7fff, 1}, 0x8000}});
}

TEST(PtxDoubles, RoundToNearest) {
  const auto bits = [](double x) { return std::bit_cast<uint64_t>(x); };
  const uint64_t nan = 0x7fffffffffffffffu, infinity = bits(INFINITY);
  check("add.rn.f64 %ow, %aw, %bw;",
        {{{bits(1), bits(0x1p-53)}, bits(1)}, {{bits(0x1.8p-52), bits(1)}, bits(0x1.0000000000002p0)}});
  check("mul.rn.f64 %ow, %aw, %bw;", {{{bits(0x1p-1000), bits(0x1p-74)}, 1}, {{infinity, bits(0)}, nan}});
  check("div.rn.f64 %ow, %aw, %bw;", {{{bits(1), bits(3)}, bits(1. / 3)}, {{bits(-1), bits(0)}, bits(-INFINITY)}});
  check("rcp.rn.f64 %ow, %aw;", {{{bits(3)}, bits(1. / 3)}, {{bits(-0.0)}, bits(-INFINITY)}});
  check("sqrt.rn.f64 %ow, %aw;", {{{bits(2)}, bits(std::sqrt(2.))}, {{bits(-1)}, nan}});
  check("min.f64 %ow, %aw, %bw;", {{{nan, bits(1)}, bits(1)}, {{bits(0), bits(-0.)}, bits(-0.)}});
  check("neg.f64 %ow, %aw;", {{{bits(1)}, bits(-1)}});
  check("cvt.rn.f64.u64 %ow, %aw;", {{{~uint64_t{0}}, bits(0x1p64)}});
  check("cvt.rn.f32.f64 %o, %aw;", {{{bits(1e300)}, kInf}, {{bits(0x1p-149)}, kTiny}, {{nan}, kNan}});
  check("cvt.f64.f32 %ow, %a;", {{{kTiny}, bits(0x1p-149)}});
  check("setp.gtu.f64 %r, %aw, %bw; selp.f64 %ow, %aw, %bw, %r;",
        {{{nan, bits(1)}, nan}, {{bits(1), bits(2)}, bits(2)}});
}

// Bytes or halves of a have the sign of the first type; .lo takes the lower two bytes of b.
TEST(PtxIntegers, DotProducts) {
  check("dp4a.u32.u32 %o, %a, %b, %c;", {{{0x01020304, 0x05060708, 9}, 1 * 5 + 2 * 6 + 3 * 7 + 4 * 8 + 9},
                                         {{0xff000080, 0x02000001, 0}, 255 * 2 + 128},
                                         {{0xffffffff, 0xffffffff, 0xffffffff}, 4 * 255 * 255 - 1}});
  check("dp2a.lo.u32.u32 %o, %a, %b, %c;",
        {{{0x00020003, 0x07060504, 1}, 3 * 4 + 2 * 5 + 1}, {{~0u, 0xff00, 0}, 65535 * 255}});
  check("dp2a.lo.s32.u32 %o, %a, %b, %c;", {{{0xfffe7fff, 0x0400, 100}, 92}, {{0x80000000, 0xff00, 0}, 0xff808000}});
}

TEST(PtxIntegers, CompareSignedAndUnsigned) {
  check("setp.lt.s32 %q, %a, %b;", {{{0xffffffff, 0}, 1}, {{0, 0}, 0}});
  check("setp.lt.u32 %q, %a, %b;", {{{0xffffffff, 0}, 0}});
  check("setp.ge.s64 %q, %aw, %bw;", {{{~uint64_t{0}, 0}, 0}});
  check("setp.eq.s16 %q, %ah, %bh;", {{{0x10001, 1}, 1}});
  check("setp.ne.b64 %q, %aw, %bw;", {{{uint64_t{1} << 40, 0}, 1}});
  check("setp.eq.s32 %r, %a, 0; selp.b32 %o, %b, %c, %r;", {{{0, 7, 8}, 7}, {{1, 7, 8}, 8}});
  check("setp.eq.s32 %r, %a, 0; @!%r mov.u32 %o, %b;", {{{0, 7}, 0}, {{1, 7}, 7}});
}

TEST(PtxFloats, RoundAsTheirSuffixSays) {
  const uint32_t half_ulp = bits(0x1p-24f);  // a half of the last bit of 1
  check("add.rn.f32 %o, %a, %b;", {{{kOne, half_ulp}, kOne}, {{kOne + 1, half_ulp}, kOne + 2}});
  check("add.rz.f32 %o, %a, %b;", {{{kOne + 1, half_ulp}, kOne + 1}});
  check("sub.rn.f32 %o, %a, %b;", {{{kOne, kOne}, 0}, {{kInf, kInf}, kNan}});
  check("mul.rn.f32 %o, %a, %b;", {{{kLargest, bits(2)}, kInf}, {{kInf, 0}, kNan}, {{kTiny, bits(0.5f)}, 0}});
  // One rounding of all: (1 + 2^-23)^2 - 1 = 2^-22 + 2^-46 exactly.
  check("fma.rn.f32 %o, %a, %b, %c;",
        {{{kOne + 1, kOne + 1, bits(-1)}, bits(0x1p-22f + 0x1p-46f)},
         {{kOne, kOne, bits(0x1p-24f)}, kOne},
         {{bits(0x1.000002p0f), bits(0x1p-24f), kOne}, kOne + 1},  // beyond the middle by 2^-47
         {{bits(0x1.fffffep-1f), bits(0x1p-24f), kOne}, kOne},     // below it
         {{bits(0x1p-75f), bits(0x1p-75f), kTiny}, 2},
         {{bits(-0x1p-75f), bits(0x1p-75f), kOne}, kOne},
         {{kInf, 0, kOne}, kNan},
         {{kLargest, bits(2), bits(-0x1p127f)}, kInf},
         {{kLargest, bits(2), kLargest | 0x80000000}, kLargest}});
  check("div.rn.f32 %o, %a, %b;", {{{kOne, 0}, kInf}, {{0, 0}, kNan}, {{kOne, bits(3)}, bits(1.f / 3)}});
  check("sqrt.rn.f32 %o, %a;", {{{bits(2)}, bits(std::sqrt(2.f))}, {{kMinusZero}, kMinusZero}, {{bits(-1)}, kNan}});
  check("rcp.rn.f32 %o, %a;", {{{bits(3)}, bits(1.f / 3)}, {{kMinusZero}, kMinusInf}});
}

TEST(PtxFloats, FlushAndSaturate) {
  check("add.rn.ftz.f32 %o, %a, %b;", {{{kTiny, kTiny}, 0}, {{kTiny | 0x80000000, kMinusZero}, kMinusZero}});
  check("mul.ftz.f32 %o, %a, %b;", {{{kLeastNormal, bits(-0.5f)}, kMinusZero}, {{kLeastNormal, kOne}, kLeastNormal}});
  check("add.rn.f32 %o, %a, %b;", {{{kTiny, kTiny}, 2}});
  check("add.rn.sat.f32 %o, %a, %b;", {{{kOne, kOne}, kOne}, {{bits(-3), kOne}, 0}, {{kNan, kOne}, 0}});
  check("fma.rn.sat.f32 %o, %a, %b, %c;",
        {{{kTiny, bits(0x1p126f), bits(0x1.fffffep-1f)}, bits(1)}, {{0, 0, bits(0.5)}, bits(0.5)}});
  check("cvt.sat.f32.f32 %o, %a;", {{{bits(1.5f)}, kOne}, {{kNan}, 0}, {{kMinusInf}, 0}, {{kMinusZero}, 0}});
  check("abs.ftz.f32 %o, %a;", {{{0x80000001}, 0}, {{bits(-2)}, bits(2)}});
  check("neg.f32 %o, %a;", {{{0}, kMinusZero}});
}

TEST(PtxFloats, OrderNaNsAndZeros) {
  check("min.f32 %o, %a, %b;", {{{kNan, kOne}, kOne}, {{0, kMinusZero}, kMinusZero}, {{kNan, 0x7fc00001}, kNan}});
  check("max.f32 %o, %a, %b;", {{{kOne, kNan}, kOne}, {{kMinusZero, 0}, 0}, {{bits(2), kOne}, bits(2)}});
  check("setp.lt.f32 %q, %a, %b;", {{{kNan, kOne}, 0}, {{0, kOne}, 1}});
  check("setp.ltu.f32 %q, %a, %b;", {{{kNan, kOne}, 1}, {{kOne, 0}, 0}});
  check("setp.geu.f32 %q, %a, %b;", {{{kOne, kNan}, 1}, {{0, kMinusZero}, 1}, {{0, kOne}, 0}});
  check("setp.eq.f32 %q, %a, %b;", {{{kNan, kNan}, 0}, {{0, kMinusZero}, 1}});
  check("setp.ne.f32 %q, %a, %b;", {{{kNan, kOne}, 0}, {{0, kOne}, 1}});
  check("setp.neu.f32 %q, %a, %b;", {{{kNan, kNan}, 1}, {{0, 0}, 0}});
  check("setp.num.f32 %q, %a, %b;", {{{kNan, kOne}, 0}, {{0, kInf}, 1}});
  check("setp.nan.f32 %q, %a, %b;", {{{kOne, kNan}, 1}, {{0, kInf}, 0}});
  check("setp.geu.ftz.f32 %q, %a, %b;", {{{0, kTiny}, 1}, {{kNan, 0}, 1}, {{0, kLeastNormal}, 0}});
  check("setp.num.ftz.f32 %q, %a, %b;", {{{kNan, kOne}, 0}, {{kTiny, kInf}, 1}});
  check("min.ftz.f32 %o, %a, %b;", {{{kTiny, kOne}, 0}, {{kNan, kOne}, kOne}});
  check("setp.gt.ftz.f32 %q, %a, %b;", {{{kTiny, 0}, 0}, {{kLeastNormal, 0}, 1}});
}

// Each choice is within the manual's error and none is closer than another's side of the true value.
TEST(PtxApproximations, StayWithinTheManualsError) {
  struct Kind {
    const char* text;
    double (*exact)(double, double);
    double ulps, relative;
  };
  const Kind kinds[] = {
      {"rcp.approx.ftz.f32 %o, %a;", [](double a, double) { return 1 / a; }, 1, 0},
      {"sqrt.approx.ftz.f32 %o, %a;", [](double a, double) { return std::sqrt(a); }, 0, 0x1p-23},
      {"rsqrt.approx.ftz.f32 %o, %a;", [](double a, double) { return 1 / std::sqrt(a); }, 0, std::exp2(-22.9)},
      {"div.approx.ftz.f32 %o, %a, %b;", [](double a, double b) { return a / b; }, 2, 0},
      {"div.full.ftz.f32 %o, %a, %b;", [](double a, double b) { return a / b; }, 2, 0}};
  std::vector<Row> rows;
  for (uint32_t i = 0; i < 1000; ++i) {
    const float a =
        std::ldexp(1 + static_cast<float>(i * 8388593 % 8388608) * 0x1p-23f, static_cast<int>(i % 200) - 100);
    rows.push_back({bits(a), bits(1.f + static_cast<float>(i) * 0x1p-11f), 0, 0});
  }
  for (const Kind& kind : kinds) {
    std::vector<std::vector<uint64_t>> got;
    for (const Choice choice : {Choice::kLowest, Choice::kNearest, Choice::kHighest, Choice::kRandom})
      got.push_back(run(kind.text, rows, {choice, 5, false}));
    int apart = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const double a = std::bit_cast<float>(static_cast<uint32_t>(rows[i][0]));
      const double b = std::bit_cast<float>(static_cast<uint32_t>(rows[i][1]));
      const double exact = kind.exact(a, b);
      const double most = kind.ulps * std::ldexp(1., std::ilogb(exact) - 23) + kind.relative * exact;
      for (const auto& of : got) {
        const double value = std::bit_cast<float>(static_cast<uint32_t>(of[i]));
        EXPECT_LE(std::fabs(value - exact), most) << kind.text << " of " << a;
      }
      EXPECT_LE(got[0][i], got[1][i]) << kind.text;
      EXPECT_LE(got[1][i], got[2][i]) << kind.text;
      EXPECT_TRUE(got[0][i] <= got[3][i] && got[3][i] <= got[2][i]) << kind.text;
      apart += got[0][i] != got[2][i];
    }
    EXPECT_GT(apart, 900) << kind.text << ": the choices hardly differ";
  }
  check("rcp.approx.ftz.f32 %o, %a;",
        {{{kTiny}, kInf}, {{kMinusInf}, kMinusZero}, {{kMinusZero}, kMinusInf}, {{kNan}, kNan}});
  check("rsqrt.approx.ftz.f32 %o, %a;", {{{0}, kInf}, {{kInf}, 0}, {{bits(-1)}, kNan}, {{kTiny}, kInf}});
  check("sqrt.approx.ftz.f32 %o, %a;", {{{0}, 0}, {{kInf}, kInf}, {{bits(-1)}, kNan}, {{kMinusZero}, kMinusZero}});
  check("div.approx.f32 %o, %a, %b;", {{{kOne, bits(0x1p127f)}, 0}, {{kInf, bits(0x1p127f)}, kNan}});
}

}  // namespace
}  // namespace ptx
