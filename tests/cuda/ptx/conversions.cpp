// cvt: between integers, floating point of 32 bits, and those of 16.
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

template <Rounding kRounding>
double whole(float x) {
  const double d = x;
  return kRounding == Rounding::kZero   ? std::trunc(d)
         : kRounding == Rounding::kDown ? std::floor(d)
         : kRounding == Rounding::kUp   ? std::ceil(d)
                                        : std::nearbyint(d);
}

// Clamped to the type's range. NaN: 0 for types of 32 bits, the upper bit of those of 64.
template <class T, Rounding kRounding>
T integer_of(float x) {
  using Limits = std::numeric_limits<T>;
  if (is_nan(x)) return sizeof(T) == 8 ? static_cast<T>(uint64_t{1} << 63) : T{0};
  const double d = whole<kRounding>(x);
  // 2^bits is a double, the largest number of 64 bits is none.
  const double above = std::ldexp(1., Limits::digits);
  if (d >= above) return Limits::max();
  if (d < static_cast<double>(Limits::min())) return Limits::min();
  return static_cast<T>(d);
}

template <class T>
void add_to_integer(Operations& all, const std::string& type) {
  const auto one = [&](const char* rounding, auto fn) {
    const std::string name = std::string("cvt.") + rounding;
    add_map<T, float>(all, name + type + ".f32", fn);
    add_map<T, float>(all, name + ".ftz" + type + ".f32", [](float x) { return decltype(fn){}(flushed<true>(x)); });
  };
  one("rni", [](float x) { return integer_of<T, Rounding::kNearest>(x); });
  one("rzi", [](float x) { return integer_of<T, Rounding::kZero>(x); });
  one("rmi", [](float x) { return integer_of<T, Rounding::kDown>(x); });
  one("rpi", [](float x) { return integer_of<T, Rounding::kUp>(x); });
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
  add_to_integer<int32_t>(all, ".s32"), add_to_integer<uint32_t>(all, ".u32");
  add_to_integer<int64_t>(all, ".s64"), add_to_integer<uint64_t>(all, ".u64");
  add_map<float, uint32_t>(all, "cvt.rn.f32.u32", [](uint32_t x) { return static_cast<float>(x); });
  add_map<float, int32_t>(all, "cvt.rn.f32.s32", [](int32_t x) { return static_cast<float>(x); });
  add_map<float, uint64_t>(all, "cvt.rn.f32.u64", [](uint64_t x) { return static_cast<float>(x); });
  add_map<float, int64_t>(all, "cvt.rn.f32.s64", [](int64_t x) { return static_cast<float>(x); });
  add_map<float, float>(all, "cvt.sat.f32.f32", [](float x) { return saturated(x); });
  add_map<float, float>(all, "cvt.ftz.sat.f32.f32", [](float x) { return saturated(flushed<true>(x)); });
  add_map<float, float>(all, "cvt.ftz.f32.f32", [](float x) { return one_nan(flushed<true>(x)); });
  add_map<float, uint16_t>(all, "cvt.f32.f16", [](uint16_t x) { return float_of_half(x); });
  add_map<float, uint16_t>(all, "cvt.ftz.f32.f16", [](uint16_t x) { return float_of_half(x); });
  add_map<float, uint16_t>(all, "cvt.f32.bf16",
                           [](uint16_t x) { return one_nan(std::bit_cast<float>(uint32_t{x} << 16)); });
  add_map<uint16_t, float>(all, "cvt.rn.f16.f32", [](float x) { return static_cast<uint16_t>(half_of(x)); });
  add_map<uint16_t, float>(all, "cvt.rn.bf16.f32", [](float x) { return static_cast<uint16_t>(bfloat_of(x)); });
  add_map<uint32_t, float, float>(all, "cvt.rn.f16x2.f32",
                                  [](float a, float b) { return pair(half_of(a), half_of(b)); });
  add_map<uint32_t, float, float>(all, "cvt.rn.bf16x2.f32",
                                  [](float a, float b) { return pair(bfloat_of(a), bfloat_of(b)); });
}

}  // namespace ptx
