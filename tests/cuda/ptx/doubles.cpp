// Arithmetic of 64-bit floating point, rounded to nearest. One NaN comes of it, as of 32 bits.
#include "floats.h"
#include "map.h"

namespace ptx {
namespace {

bool is_nan_of_64(double x) { return x != x; }
double one_nan_of_64(double x) { return is_nan_of_64(x) ? std::bit_cast<double>(0x7fffffffffffffffu) : x; }

template <class... A, class Fn>
void add(Operations& all, const std::string& name, Fn) {
  add_map<double, A...>(all, name, [](A... a) { return one_nan_of_64(Fn{}(a...)); });
}

template <class Fn>
void add_comparison(Operations& all, const std::string& name, Fn) {
  // Ordered ones are false of a NaN, unordered ones (with a u) true.
  add_test<double, double>(all, "setp." + name + ".f64",
                           [](double a, double b) { return !is_nan_of_64(a) && !is_nan_of_64(b) && Fn{}(a, b); });
  add_test<double, double>(all, "setp." + name + "u.f64",
                           [](double a, double b) { return is_nan_of_64(a) || is_nan_of_64(b) || Fn{}(a, b); });
}

}  // namespace

void add_doubles(Operations& all) {
  for (const char* rounding : {"", ".rn"}) {
    const auto named = [&](const char* name) { return name + std::string(rounding) + ".f64"; };
    add<double, double>(all, named("add"), [](double a, double b) { return a + b; });
    add<double, double>(all, named("sub"), [](double a, double b) { return a - b; });
    add<double, double>(all, named("mul"), [](double a, double b) { return a * b; });
  }
  add<double, double>(all, "div.rn.f64", [](double a, double b) { return a / b; });
  add<double>(all, "rcp.rn.f64", [](double a) { return 1 / a; });
  add<double>(all, "sqrt.rn.f64", [](double a) { return std::sqrt(a); });
  add<double, double>(all, "min.f64", [](double a, double b) {
    if (is_nan_of_64(a) || is_nan_of_64(b)) return is_nan_of_64(a) ? b : a;
    return a < b || (a == b && std::signbit(a)) ? a : b;
  });
  add<float>(all, "cvt.f64.f32", [](float a) { return static_cast<double>(a); });
  add<uint64_t>(all, "cvt.rn.f64.u64", [](uint64_t a) { return static_cast<double>(a); });
  add_map<float, double>(all, "cvt.rn.f32.f64", [](double a) { return one_nan(static_cast<float>(a)); });
  add_map<double, double>(
      all, "neg.f64", [](double a) { return std::bit_cast<double>(std::bit_cast<uint64_t>(a) ^ uint64_t{1} << 63); });
  add_comparison(all, "eq", [](double a, double b) { return a == b; });
  add_comparison(all, "lt", [](double a, double b) { return a < b; });
  add_comparison(all, "le", [](double a, double b) { return a <= b; });
  add_comparison(all, "gt", [](double a, double b) { return a > b; });
  add_comparison(all, "ge", [](double a, double b) { return a >= b; });
}

}  // namespace ptx
