// setp: predicates from comparisons.
#include "floats.h"
#include "map.h"

namespace ptx {
namespace {

template <class T>
void add_of(Operations& all, const std::string& type) {
  const auto one = [&](const char* name, auto fn) { add_test<T, T>(all, "setp." + std::string(name) + type, fn); };
  one("eq", [](T a, T b) { return a == b; });
  one("ne", [](T a, T b) { return a != b; });
  one("lt", [](T a, T b) { return a < b; });
  one("le", [](T a, T b) { return a <= b; });
  one("gt", [](T a, T b) { return a > b; });
  one("ge", [](T a, T b) { return a >= b; });
}

// Ordered ones are false of a NaN, unordered ones (with a u) true.
template <bool kFlush>
void add_floats_of(Operations& all) {
  const auto one = [&](const std::string& name, auto fn) {
    add_test<float, float>(all, "setp." + name + (kFlush ? ".ftz.f32" : ".f32"), [](float a, float b) {
      return decltype(fn){}(flushed<kFlush>(a), flushed<kFlush>(b), is_nan(a) || is_nan(b));
    });
  };
  one("eq", [](float a, float b, bool nan) { return !nan && a == b; });
  one("ne", [](float a, float b, bool nan) { return !nan && a != b; });
  one("lt", [](float a, float b, bool nan) { return !nan && a < b; });
  one("le", [](float a, float b, bool nan) { return !nan && a <= b; });
  one("gt", [](float a, float b, bool nan) { return !nan && a > b; });
  one("ge", [](float a, float b, bool nan) { return !nan && a >= b; });
  one("equ", [](float a, float b, bool nan) { return nan || a == b; });
  one("neu", [](float a, float b, bool nan) { return nan || a != b; });
  one("ltu", [](float a, float b, bool nan) { return nan || a < b; });
  one("leu", [](float a, float b, bool nan) { return nan || a <= b; });
  one("gtu", [](float a, float b, bool nan) { return nan || a > b; });
  one("geu", [](float a, float b, bool nan) { return nan || a >= b; });
  one("num", [](float, float, bool nan) { return !nan; });
  one("nan", [](float, float, bool nan) { return nan; });
}

}  // namespace

void add_comparisons(Operations& all) {
  add_of<uint16_t>(all, ".u16"), add_of<int16_t>(all, ".s16"), add_of<uint32_t>(all, ".u32");
  add_of<int32_t>(all, ".s32"), add_of<uint64_t>(all, ".u64"), add_of<int64_t>(all, ".s64");
  for (const char* name : {"setp.eq", "setp.ne"})
    for (const char* bits : {"16", "32", "64"})
      all[name + std::string(".b") + bits] = all.at(name + std::string(".u") + bits);
  add_floats_of<false>(all), add_floats_of<true>(all);
}

}  // namespace ptx
