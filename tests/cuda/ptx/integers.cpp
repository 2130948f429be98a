// Integer arithmetic.
#include "map.h"

namespace ptx {
namespace {

template <class T>
using Unsigned = std::make_unsigned_t<T>;
template <class T>
using Wide = std::conditional_t<std::is_signed_v<T>, std::conditional_t<sizeof(T) == 2, int32_t, int64_t>,
                                std::conditional_t<sizeof(T) == 2, uint32_t, uint64_t>>;
__extension__ using Signed128 = __int128;
__extension__ using Unsigned128 = unsigned __int128;
template <class T>
using Double =
    std::conditional_t<sizeof(T) == 8, std::conditional_t<std::is_signed_v<T>, Signed128, Unsigned128>, Wide<T>>;

template <class T>
T low_product(T a, T b) {
  return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}
template <class T>
T high_product(T a, T b) {
  return static_cast<T>((Double<T>(a) * Double<T>(b)) >> (8 * sizeof(T)));
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
  two("mul.hi", [](T a, T b) { return high_product(a, b); });
  two("div", [](T a, T b) { return quotient(a, b); });
  two("rem", [](T a, T b) { return remainder(a, b); });
  two("min", [](T a, T b) { return a < b ? a : b; });
  two("max", [](T a, T b) { return a < b ? b : a; });
  add_map<T, T, T, T>(all, "mad.lo" + type, [](T a, T b, T c) { return sum(low_product(a, b), c); });
  add_map<T, T, T, T>(all, "mad.hi" + type, [](T a, T b, T c) { return sum(high_product(a, b), c); });
  if constexpr (sizeof(T) < 8) {
    using W = Wide<T>;
    add_map<W, T, T>(all, "mul.wide" + type, [](T a, T b) { return static_cast<W>(W{a} * W{b}); });
    add_map<W, T, T, W>(all, "mad.wide" + type, [](T a, T b, W c) { return sum(static_cast<W>(W{a} * W{b}), c); });
  }
  if constexpr (std::is_signed_v<T>) {
    add_map<T, T>(all, "neg" + type, [](T a) { return static_cast<T>(Unsigned<T>{0} - static_cast<Unsigned<T>>(a)); });
    add_map<T, T>(all, "abs" + type,
                  [](T a) { return a < 0 ? static_cast<T>(Unsigned<T>{0} - static_cast<Unsigned<T>>(a)) : a; });
  }
  // Shifts by the width and more: as often as there are bits.
  constexpr uint32_t kMost = 8 * sizeof(T) - 1;
  add_map<T, T, uint32_t>(all, "shr" + type, [](T a, uint32_t n) {
    if (n > kMost) return static_cast<T>(std::is_signed_v<T> && a < 0 ? -1 : 0);
    return static_cast<T>(a >> n);
  });
}

// The sum of c and the products of the bytes or halves of a with as many bytes of b, from number `first` on.
template <int kParts, class A, class B>
uint32_t dot_product(uint32_t a, uint32_t b, uint32_t c, int first) {
  for (int i = 0; i < kParts; ++i)
    c += static_cast<uint32_t>(int32_t{static_cast<A>(a >> 32 / kParts * i)} *
                               int32_t{static_cast<B>(b >> 8 * (first + i))});
  return c;
}
template <bool kSignedA, bool kSignedB>
void add_dot_products(Operations& all, const std::string& types) {
  using W = uint32_t;
  using A8 = std::conditional_t<kSignedA, int8_t, uint8_t>;
  using A16 = std::conditional_t<kSignedA, int16_t, uint16_t>;
  using B = std::conditional_t<kSignedB, int8_t, uint8_t>;
  add_map<W, W, W, W>(all, "dp4a" + types, [](W a, W b, W c) { return dot_product<4, A8, B>(a, b, c, 0); });
  add_map<W, W, W, W>(all, "dp2a.lo" + types, [](W a, W b, W c) { return dot_product<2, A16, B>(a, b, c, 0); });
  add_map<W, W, W, W>(all, "dp2a.hi" + types, [](W a, W b, W c) { return dot_product<2, A16, B>(a, b, c, 2); });
}

}  // namespace

void add_integers(Operations& all) {
  add_of<uint16_t>(all, ".u16"), add_of<int16_t>(all, ".s16");
  add_of<uint32_t>(all, ".u32"), add_of<int32_t>(all, ".s32");
  add_of<uint64_t>(all, ".u64"), add_of<int64_t>(all, ".s64");
  add_dot_products<false, false>(all, ".u32.u32"), add_dot_products<false, true>(all, ".u32.s32");
  add_dot_products<true, false>(all, ".s32.u32"), add_dot_products<true, true>(all, ".s32.s32");
}

}  // namespace ptx
