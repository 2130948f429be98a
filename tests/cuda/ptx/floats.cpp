// Arithmetic of 32-bit floating point, rounded as IEEE 754 has it.
#include "floats.h"
#include "map.h"

namespace ptx {
namespace {

struct Add {
  template <Rounding kRounding>
  static float of(float a, float b) {
    if constexpr (kRounding == Rounding::kNearest) return a + b;
    const double sum = odd_sum(a, b);
    // An exact zero of different signs is -0 if rounded down.
    if (sum == 0 && kRounding == Rounding::kDown && std::signbit(a) != std::signbit(b)) return -0.f;
    return rounded<kRounding>(sum);
  }
};
struct Subtract {
  template <Rounding kRounding>
  static float of(float a, float b) {
    return Add::of<kRounding>(a, -b);
  }
};
struct Multiply {
  template <Rounding kRounding>
  static float of(float a, float b) {
    if constexpr (kRounding == Rounding::kNearest) return a * b;
    return rounded<kRounding>(static_cast<double>(a) * b);  // 48 bits: exact
  }
};
struct Fused {
  template <Rounding kRounding>
  static float of(float a, float b, float c) {
    const double product = static_cast<double>(a) * b, sum = odd_sum(product, c);
    if (kRounding == Rounding::kDown && sum == 0 && std::signbit(product) != std::signbit(c)) return -0.f;
    return rounded<kRounding>(sum);
  }
};

template <class Op, Rounding kRounding, bool kFlush, bool kSaturate, class... A>
void add_one(Operations& all, const std::string& name) {
  add_map<float, A...>(all, name + (kFlush ? ".ftz" : "") + (kSaturate ? ".sat" : "") + ".f32", [](A... a) {
    const float value = flushed<kFlush>(Op::template of<kRounding>(flushed<kFlush>(a)...));
    return kSaturate ? saturated(value) : one_nan(value);
  });
}

template <class Op, Rounding kRounding, class... A>
void add_rounding(Operations& all, const std::string& name) {
  add_one<Op, kRounding, false, false, A...>(all, name), add_one<Op, kRounding, true, false, A...>(all, name);
  add_one<Op, kRounding, false, true, A...>(all, name), add_one<Op, kRounding, true, true, A...>(all, name);
}

template <class Op, class... A>
void add_arithmetic(Operations& all, const std::string& name) {
  add_rounding<Op, Rounding::kNearest, A...>(all, name + ".rn");
  add_rounding<Op, Rounding::kZero, A...>(all, name + ".rz");
  add_rounding<Op, Rounding::kDown, A...>(all, name + ".rm");
  add_rounding<Op, Rounding::kUp, A...>(all, name + ".rp");
  // Without a rounding: to nearest; a compiler may also contract it, as fast kernels' bounds allow.
  if constexpr (sizeof...(A) == 2) add_rounding<Op, Rounding::kNearest, A...>(all, name);
}

// The other operand of a NaN; -0 is below +0.
float least(float a, float b) {
  if (is_nan(a)) return one_nan(b);
  if (is_nan(b)) return a;
  if (a == b) return std::signbit(a) ? a : b;
  return a < b ? a : b;
}
float most(float a, float b) {
  if (is_nan(a)) return one_nan(b);
  if (is_nan(b)) return a;
  if (a == b) return std::signbit(a) ? b : a;
  return a < b ? b : a;
}

template <bool kFlush>
void add_rest(Operations& all) {
  const std::string end = kFlush ? ".ftz.f32" : ".f32";
  const auto one = [&](const char* name, auto fn) { add_map<float, float>(all, name + end, fn); };
  const auto two = [&](const char* name, auto fn) { add_map<float, float, float>(all, name + end, fn); };
  one("abs", [](float a) { return std::bit_cast<float>(std::bit_cast<uint32_t>(flushed<kFlush>(a)) & 0x7fffffffu); });
  one("neg", [](float a) { return std::bit_cast<float>(std::bit_cast<uint32_t>(flushed<kFlush>(a)) ^ 0x80000000u); });
  two("min", [](float a, float b) { return least(flushed<kFlush>(a), flushed<kFlush>(b)); });
  two("max", [](float a, float b) { return most(flushed<kFlush>(a), flushed<kFlush>(b)); });
  const std::string nan_end = kFlush ? ".ftz.NaN.f32" : ".NaN.f32";
  add_map<float, float, float>(all, "min" + nan_end, [](float a, float b) {
    return is_nan(a) || is_nan(b) ? nan_of_ptx() : least(flushed<kFlush>(a), flushed<kFlush>(b));
  });
  add_map<float, float, float>(all, "max" + nan_end, [](float a, float b) {
    return is_nan(a) || is_nan(b) ? nan_of_ptx() : most(flushed<kFlush>(a), flushed<kFlush>(b));
  });
  two("div.rn", [](float a, float b) { return one_nan(flushed<kFlush>(flushed<kFlush>(a) / flushed<kFlush>(b))); });
  one("rcp.rn", [](float a) { return one_nan(flushed<kFlush>(1.f / flushed<kFlush>(a))); });
  one("sqrt.rn", [](float a) { return one_nan(flushed<kFlush>(std::sqrt(flushed<kFlush>(a)))); });
}

}  // namespace

void add_floats(Operations& all) {
  add_arithmetic<Add, float, float>(all, "add"), add_arithmetic<Subtract, float, float>(all, "sub");
  add_arithmetic<Multiply, float, float>(all, "mul"), add_arithmetic<Fused, float, float, float>(all, "fma");
  add_rest<false>(all), add_rest<true>(all);
}

}  // namespace ptx
