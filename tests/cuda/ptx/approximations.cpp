// Approximate instructions give any value that the manual's error allows: Policy::choice picks it. Errors are those of
// the PTX ISA's sections on rcp, sqrt, rsqrt and div.
#include <algorithm>

#include "floats.h"
#include "map.h"

namespace ptx {
namespace {

// Its order among numbers, and back.
int64_t place(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return bits >> 31 ? -static_cast<int64_t>(bits & 0x7fffffffu) : static_cast<int64_t>(bits);
}
float at_place(int64_t place) {
  return std::bit_cast<float>(place < 0 ? 0x80000000u | static_cast<uint32_t>(-place) : static_cast<uint32_t>(place));
}

// A number within `error` of the value, which is finite and not 0.
float pick(Team& team, double value, double error) {
  const float nearest = static_cast<float>(value);
  const float lowest = rounded<Rounding::kUp>(value - error), highest = rounded<Rounding::kDown>(value + error);
  if (std::isinf(nearest) || lowest > highest) return nearest;
  switch (team.policy.choice) {
    case Choice::kLowest:
      return lowest;
    case Choice::kHighest:
      return highest;
    case Choice::kNearest:
      return nearest;
    case Choice::kRandom:
      break;
  }
  const int64_t first = place(lowest), last = place(highest);
  return at_place(first + team.random.below(static_cast<uint64_t>(last - first + 1)));
}

// The last bit of a number of this size; not below that of denormals.
double ulp(double value) { return std::ldexp(1., std::max(std::ilogb(value), -126) - 23); }

struct Reciprocal {
  static float of(Team& team, float a) {
    if (a == 0 || !std::isfinite(a)) return 1 / a;
    const double value = 1. / a;
    return pick(team, value, ulp(value));
  }
};
struct Root {
  static float of(Team& team, float a) {
    if (!(a > 0) || std::isinf(a)) return std::sqrt(a);
    const double value = std::sqrt(static_cast<double>(a));
    return pick(team, value, std::ldexp(value, -23));
  }
};
struct ReciprocalRoot {
  static float of(Team& team, float a) {
    if (!(a > 0) || std::isinf(a)) return a == 0 ? 1 / a : a > 0 ? 0.f : nan_of_ptx();
    const double value = 1 / std::sqrt(static_cast<double>(a));
    return pick(team, value, value * std::exp2(-22.9));
  }
};
template <bool kFull>
struct Quotient {
  static float of(Team& team, float a, float b) {
    // Beyond 2^126 the approximate quotient is 0, or NaN of an infinity.
    if (!kFull && std::fabs(b) > 0x1p126f && std::isfinite(b))
      return std::isinf(a) ? nan_of_ptx() : a * b < 0 ? -0.f : 0.f;
    const double value = static_cast<double>(a) / b;
    if (value == 0 || !std::isfinite(value)) return static_cast<float>(value);
    return pick(team, value, 2 * ulp(value));
  }
};

template <class Op, bool kFlush, class... A>
struct Approximate {
  static void run(Warp& warp, const Instruction& at, uint32_t mask) {
    run_on(warp, at, mask, std::index_sequence_for<A...>());
  }
  template <size_t... I>
  static void run_on(Warp& warp, const Instruction& at, uint32_t mask, std::index_sequence<I...>) {
    on_words(warp, warp.destination<float>(at.x[0]), mask, warp.source<A>(at.x[I + 1])...);
  }
  static void on_words(Warp& warp, uint32_t* to, uint32_t mask, const Word<A>*... from) {
    each_lane(mask, [&](uint32_t lane) {
      const float value = Op::of(warp.team(), flushed<kFlush>(from_word<A>(from[lane]))...);
      to[lane] = std::bit_cast<uint32_t>(one_nan(flushed<kFlush>(value)));
    });
  }
};

template <class Op, class... A>
void add_one(Operations& all, const std::string& name) {
  const std::string operands(1 + sizeof...(A), 'w');
  all[name + ".f32"] = {Approximate<Op, false, A...>::run, nullptr, operands};
  all[name + ".ftz.f32"] = {Approximate<Op, true, A...>::run, nullptr, operands};
}

}  // namespace

void add_approximations(Operations& all) {
  add_one<Reciprocal, float>(all, "rcp.approx");
  add_one<Root, float>(all, "sqrt.approx");
  add_one<ReciprocalRoot, float>(all, "rsqrt.approx");
  add_one<Quotient<false>, float, float>(all, "div.approx");
  add_one<Quotient<true>, float, float>(all, "div.full");
}

}  // namespace ptx
