// cvt: between integers, floating point of 32 bits, and those of 16.
#include <algorithm>

#include "floats.h"
#include "map.h"

namespace ptx {
namespace {

// Halves' bits, to nearest even; denormals are kept.
uint32_t half_of(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits >> 16 & 0x8000;
  if (is_nan(x)) return 0x7fff;
  const double size = std::fabs(static_cast<double>(x));
  if (size >= 65520) return sign | 0x7c00;  // the middle between the largest and 2^16 goes up
  const int exponent = std::max(size > 0 ? std::ilogb(size) : -14, -14);
  const double units = std::ldexp(size, 10 - exponent);  // exact; below 2^11
  auto whole = static_cast<uint32_t>(units);
  const double rest = units - whole;
  if (rest > 0.5 || (rest == 0.5 && whole & 1)) ++whole;
  // 1024 units are the implicit bit, and carries run into the exponent by themselves.
  return sign | (static_cast<uint32_t>(exponent + 14) * 1024 + whole);
}
float float_of_half(uint16_t half) {
  const uint32_t exponent = half >> 10 & 31, mantissa = half & 1023;
  float size;
  if (exponent == 31)
    size = mantissa ? nan_of_ptx() : std::numeric_limits<float>::infinity();
  else
    size = std::ldexp(static_cast<float>(exponent ? 1024 + mantissa : mantissa),
                      static_cast<int>(std::max(exponent, 1u)) - 25);
  return half >> 15 && !is_nan(size) ? -size : size;
}
uint32_t bfloat_of(float x) {
  if (is_nan(x)) return 0x7fff;
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rest = bits & 0xffff, up = rest > 0x8000 || (rest == 0x8000 && bits >> 16 & 1);
  return (bits >> 16) + up;
}

// Towards zero, and clamped to the range; 0 of a NaN.
int32_t integer_of(float x) {
  using Limits = std::numeric_limits<int32_t>;
  if (is_nan(x)) return 0;
  const double d = std::trunc(static_cast<double>(x));
  return static_cast<int32_t>(std::clamp<double>(d, Limits::min(), Limits::max()));
}

// Sign- or zero-extended, or cut. Registers wider than their type: names ask for both widths.
template <class To, class From>
void add_integer(Operations& all, const std::string& to, const std::string& from) {
  const std::string name = "cvt" + to + from;
  add_map<To, From>(all, name, [](From x) { return static_cast<To>(x); });
  if (sizeof(From) == 2) all[name].operands.back() = 'x';
}

// A byte type lies in a register of 16 bits or 32, one of 16 bits in either (operands may be wider than their type);
// the result's upper part is its extension.
template <class From>
void add_integers_from(Operations& all, const std::string& from) {
  add_integer<uint16_t, From>(all, ".u16", from), add_integer<int16_t, From>(all, ".s16", from);
  add_integer<uint32_t, From>(all, ".u32", from), add_integer<int32_t, From>(all, ".s32", from);
  add_integer<uint64_t, From>(all, ".u64", from), add_integer<int64_t, From>(all, ".s64", from);
}

uint32_t pair(uint32_t upper, uint32_t lower) { return upper << 16 | lower; }

}  // namespace

void add_conversions(Operations& all) {
  add_integers_from<uint16_t>(all, ".u16"), add_integers_from<int16_t>(all, ".s16");
  add_integers_from<uint32_t>(all, ".u32"), add_integers_from<int32_t>(all, ".s32");
  add_integers_from<uint64_t>(all, ".u64"), add_integers_from<int64_t>(all, ".s64");
  add_integers_from<uint8_t>(all, ".u8"), add_integers_from<int8_t>(all, ".s8");
  add_map<int32_t, float>(all, "cvt.rzi.s32.f32", [](float x) { return integer_of(x); });
  add_map<int32_t, float>(all, "cvt.rzi.ftz.s32.f32", [](float x) { return integer_of(flushed<true>(x)); });
  add_map<float, uint32_t>(all, "cvt.rn.f32.u32", [](uint32_t x) { return static_cast<float>(x); });
  add_map<float, int32_t>(all, "cvt.rn.f32.s32", [](int32_t x) { return static_cast<float>(x); });
  add_map<float, float>(all, "cvt.sat.f32.f32", [](float x) { return saturated(x); });
  add_map<float, float>(all, "cvt.ftz.sat.f32.f32", [](float x) { return saturated(flushed<true>(x)); });
  add_map<float, uint16_t>(all, "cvt.f32.f16", [](uint16_t x) { return float_of_half(x); });
  add_map<uint32_t, float, float>(all, "cvt.rn.f16x2.f32",
                                  [](float a, float b) { return pair(half_of(a), half_of(b)); });
  add_map<uint32_t, float, float>(all, "cvt.rn.bf16x2.f32",
                                  [](float a, float b) { return pair(bfloat_of(a), bfloat_of(b)); });
}

}  // namespace ptx
