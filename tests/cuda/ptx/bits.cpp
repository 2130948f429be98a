// Moves, logic, shifts and permutations of bits.
#include "map.h"

namespace ptx {
namespace {

uint32_t permute(uint32_t a, uint32_t b, uint32_t pick) {
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  uint32_t out = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t selector = pick >> (4 * i) & 15;
    uint32_t byte = static_cast<uint32_t>(bytes >> (8 * (selector & 7))) & 255;
    // The fourth bit of a selector: the byte's sign instead of the byte.
    if (selector & 8) byte = byte & 128 ? 255 : 0;
    out |= byte << (8 * i);
  }
  return out;
}

template <class T>
T insert(T field, T into, uint32_t position, uint32_t length) {
  position &= 255, length &= 255;
  constexpr uint32_t kBits = 8 * sizeof(T);
  for (uint32_t i = 0; i < length && position + i < kBits; ++i) {
    const T bit = T{1} << (position + i);
    into = i < kBits && field >> i & 1 ? into | bit : into & ~bit;
  }
  return into;
}

template <class T>
void add_of(Operations& all, const std::string& type) {
  const auto two = [&](const char* name, auto fn) { add_map<T, T, T>(all, name + type, fn); };
  two("and", [](T a, T b) { return static_cast<T>(a & b); });
  two("or", [](T a, T b) { return static_cast<T>(a | b); });
  two("xor", [](T a, T b) { return static_cast<T>(a ^ b); });
  add_map<T, T>(all, "not" + type, [](T a) { return static_cast<T>(~a); });
  constexpr uint32_t kMost = 8 * sizeof(T) - 1;
  add_map<T, T, uint32_t>(all, "shl" + type,
                          [](T a, uint32_t n) { return static_cast<T>(n > kMost ? T{0} : static_cast<T>(a << n)); });
  add_map<T, T, uint32_t>(all, "shr" + type,
                          [](T a, uint32_t n) { return static_cast<T>(n > kMost ? T{0} : static_cast<T>(a >> n)); });
  if constexpr (sizeof(T) >= 4) {
    add_map<uint32_t, T>(all, "popc" + type, [](T a) { return static_cast<uint32_t>(std::popcount(a)); });
    add_map<T, T, T, uint32_t, uint32_t>(all, "bfi" + type,
                                         [](T a, T b, uint32_t c, uint32_t d) { return insert(a, b, c, d); });
  }
}

// mov and selp of all names that a type of this width has.
template <class T>
void add_moves(Operations& all, std::initializer_list<const char*> types) {
  for (const char* type : types) {
    add_map<T, T>(all, std::string("mov") + type, [](T a) { return a; });
    all[std::string("selp") + type] = {
        [](Warp& warp, const Instruction& at, uint32_t mask) {
          const auto *a = warp.source<T>(at.x[1]), *b = warp.source<T>(at.x[2]);
          auto* to = warp.destination<T>(at.x[0]);
          const uint32_t takes_a = warp.predicate(at.x[3]) ^ (at.source_negated ? kAllLanes : 0);
          each_lane(mask, [&](uint32_t lane) { to[lane] = takes_a >> lane & 1 ? a[lane] : b[lane]; });
        },
        nullptr,
        {letter<T>(), letter<T>(), letter<T>(), 'p'}};
  }
}

// mov.b32 of two 16-bit parts, and mov.b64 of two of 32.
template <class T, class Part>
void add_parts(Operations& all, const std::string& type) {
  constexpr uint32_t kBits = 8 * sizeof(Part);
  add_map<T, Part, Part>(all, "mov" + type + ".pack2",
                         [](Part low, Part high) { return static_cast<T>(T{high} << kBits | low); });
  all["mov" + type + ".unpack2"] = {[](Warp& warp, const Instruction& at, uint32_t mask) {
                                      const auto* from = warp.source<T>(at.x[2]);
                                      auto *low = warp.destination<Part>(at.x[0]),
                                           *high = warp.destination<Part>(at.x[1]);
                                      each_lane(mask, [&](uint32_t lane) {
                                        const T value = from[lane];
                                        low[lane] = static_cast<Part>(value);
                                        high[lane] = static_cast<Part>(value >> kBits);
                                      });
                                    },
                                    nullptr,
                                    {letter<Part>(), letter<Part>(), letter<T>()}};
}

template <class Fn>
void add_predicate(Operations& all, const char* name, bool is_binary, Fn) {
  all[name] = {[](Warp& warp, const Instruction& at, uint32_t mask) {
                 const uint32_t a = warp.predicate(at.x[1]), b = warp.predicate(at.x[2]);
                 warp.set_predicate(at.x[0], mask, Fn{}(a, b));
               },
               nullptr, is_binary ? "ppp" : "pp"};
}

}  // namespace

void add_bits(Operations& all) {
  add_of<uint16_t>(all, ".b16"), add_of<uint32_t>(all, ".b32"), add_of<uint64_t>(all, ".b64");
  add_moves<uint16_t>(all, {".b16", ".u16", ".s16"});
  add_moves<uint32_t>(all, {".b32", ".u32", ".s32", ".f32"});
  add_moves<uint64_t>(all, {".b64", ".u64", ".s64", ".f64"});
  add_parts<uint32_t, uint16_t>(all, ".b32"), add_parts<uint64_t, uint32_t>(all, ".b64");
  // Generic addresses are those of global memory: nothing here makes others generic.
  all["cvta.to.global.u64"] = all.at("mov.b64");

  using W = uint32_t;
  add_map<W, W, W, W>(all, "prmt.b32", [](W a, W b, W c) { return permute(a, b, c); });
  add_predicate(all, "and.pred", true, [](W a, W b) { return a & b; });
  add_predicate(all, "or.pred", true, [](W a, W b) { return a | b; });
  add_predicate(all, "xor.pred", true, [](W a, W b) { return a ^ b; });
  add_predicate(all, "not.pred", false, [](W a, W) { return ~a; });
  add_predicate(all, "mov.pred", false, [](W a, W) { return a; });
}

}  // namespace ptx
