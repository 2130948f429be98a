// Arithmetic of 32-bit floating point, rounded as IEEE 754 has it.
#include "floats.h"
#include "map.h"

namespace ptx {
namespace {

struct Add {
  static float of(float a, float b) { return a + b; }
};
struct AddTowardsZero {
  static float of(float a, float b) { return rounded<Rounding::kZero>(odd_sum(a, b)); }
};
struct Subtract {
  static float of(float a, float b) { return a - b; }
};
struct Multiply {
  static float of(float a, float b) { return a * b; }
};
struct Fused {
  static float of(float a, float b, float c) { return static_cast<float>(odd_sum(static_cast<double>(a) * b, c)); }
};

template <class Op, bool kFlush, bool kSaturate, class... A>
void add_one(Operations& all, const std::string& name) {
  add_map<float, A...>(all, name + (kFlush ? ".ftz" : "") + (kSaturate ? ".sat" : "") + ".f32", [](A... a) {
    const float value = flushed<kFlush>(Op::of(flushed<kFlush>(a)...));
    return kSaturate ? saturated(value) : one_nan(value);
  });
}

template <class Op, class... A>
void add_all(Operations& all, const std::string& name) {
  add_one<Op, false, false, A...>(all, name), add_one<Op, true, false, A...>(all, name);
  add_one<Op, false, true, A...>(all, name), add_one<Op, true, true, A...>(all, name);
}

template <class Op, class... A>
void add_arithmetic(Operations& all, const std::string& name) {
  add_all<Op, A...>(all, name + ".rn");
  // Without a rounding: to nearest; a compiler may also contract it, as fast kernels' bounds allow.
  if constexpr (sizeof...(A) == 2) add_all<Op, A...>(all, name);
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
  two("div.rn", [](float a, float b) { return one_nan(flushed<kFlush>(flushed<kFlush>(a) / flushed<kFlush>(b))); });
  one("rcp.rn", [](float a) { return one_nan(flushed<kFlush>(1.f / flushed<kFlush>(a))); });
  one("sqrt.rn", [](float a) { return one_nan(flushed<kFlush>(std::sqrt(flushed<kFlush>(a)))); });
}

}  // namespace

void add_floats(Operations& all) {
  add_arithmetic<Add, float, float>(all, "add"), add_arithmetic<Subtract, float, float>(all, "sub");
  add_arithmetic<Multiply, float, float>(all, "mul"), add_arithmetic<Fused, float, float, float>(all, "fma");
  add_all<AddTowardsZero, float, float>(all, "add.rz");
  add_rest<false>(all), add_rest<true>(all);
}

}  // namespace ptx
