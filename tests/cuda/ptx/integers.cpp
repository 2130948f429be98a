// Integer arithmetic.
#include "map.h"

namespace ptx {
namespace {

template <class T>
using Unsigned = std::make_unsigned_t<T>;
template <class T>
using Wide = std::conditional_t<std::is_signed_v<T>, std::conditional_t<sizeof(T) == 2, int32_t, int64_t>,
                                std::conditional_t<sizeof(T) == 2, uint32_t, uint64_t>>;
template <class T>
T low_product(T a, T b) {
  return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}
template <class T>
T sum(T a, T b) {
  return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
}

// By zero the manual leaves the value open; all ones is what no code may count on. -2^(n-1) / -1 overflows to itself.
template <class T>
T quotient(T a, T b) {
  if (b == 0) return static_cast<T>(~T{0});
  if constexpr (std::is_signed_v<T>)
    if (b == -1) return static_cast<T>(Unsigned<T>{0} - static_cast<Unsigned<T>>(a));
  return static_cast<T>(a / b);
}
template <class T>
T remainder(T a, T b) {
  if (b == 0) return static_cast<T>(~T{0});
  if constexpr (std::is_signed_v<T>)
    if (b == -1) return 0;
  return static_cast<T>(a % b);
}

template <class T>
void add_of(Operations& all, const std::string& type) {
  const auto two = [&](const char* name, auto fn) { add_map<T, T, T>(all, name + type, fn); };
  two("add", [](T a, T b) { return sum(a, b); });
  two("sub", [](T a, T b) { return static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b)); });
  two("mul.lo", [](T a, T b) { return low_product(a, b); });
  two("div", [](T a, T b) { return quotient(a, b); });
  two("rem", [](T a, T b) { return remainder(a, b); });
  two("min", [](T a, T b) { return a < b ? a : b; });
  two("max", [](T a, T b) { return a < b ? b : a; });
  add_map<T, T, T, T>(all, "mad.lo" + type, [](T a, T b, T c) { return sum(low_product(a, b), c); });
  if constexpr (sizeof(T) < 8) {
    using W = Wide<T>;
    add_map<W, T, T>(all, "mul.wide" + type, [](T a, T b) { return static_cast<W>(W{a} * W{b}); });
  }
  if constexpr (std::is_signed_v<T>) {
    add_map<T, T>(all, "neg" + type, [](T a) { return static_cast<T>(Unsigned<T>{0} - static_cast<Unsigned<T>>(a)); });
  }
  // Shifts by the width and more: as often as there are bits.
  constexpr uint32_t kMost = 8 * sizeof(T) - 1;
  add_map<T, T, uint32_t>(all, "shr" + type, [](T a, uint32_t n) {
    if (n > kMost) return static_cast<T>(std::is_signed_v<T> && a < 0 ? -1 : 0);
    return static_cast<T>(a >> n);
  });
}

// The sum of c and the products of the bytes or halves of a with the lowest bytes of b.
template <int kParts, class A>
uint32_t dot_product(uint32_t a, uint32_t b, uint32_t c) {
  for (int i = 0; i < kParts; ++i)
    c += static_cast<uint32_t>(int32_t{static_cast<A>(a >> 32 / kParts * i)} *
                               int32_t{static_cast<uint8_t>(b >> 8 * i)});
  return c;
}

}  // namespace

void add_integers(Operations& all) {
  add_of<uint16_t>(all, ".u16"), add_of<int16_t>(all, ".s16");
  add_of<uint32_t>(all, ".u32"), add_of<int32_t>(all, ".s32");
  add_of<uint64_t>(all, ".u64"), add_of<int64_t>(all, ".s64");
  using W = uint32_t;
  add_map<W, W, W, W>(all, "dp4a.u32.u32", [](W a, W b, W c) { return dot_product<4, uint8_t>(a, b, c); });
  add_map<W, W, W, W>(all, "dp2a.lo.u32.u32", [](W a, W b, W c) { return dot_product<2, uint16_t>(a, b, c); });
  add_map<W, W, W, W>(all, "dp2a.lo.s32.u32", [](W a, W b, W c) { return dot_product<2, int16_t>(a, b, c); });
}

}  // namespace ptx
