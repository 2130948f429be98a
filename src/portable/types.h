// Names the fixed-width types and the function markers. Device code defines LT_FN and LT_HOST_FN before including this.
#ifndef LT_FN
#define LT_FN static inline __attribute__((always_inline))
#endif
#ifndef LT_HOST_FN
#define LT_HOST_FN static inline
#endif

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;
static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8 && sizeof(float) == 4);

// Tensors store bf16 and fp16 as their bits; the wrapper keeps the three element types apart.
struct bf16 {
  u16 bits;
};
struct f16 {
  u16 bits;
};

// Two 4-bit codes, the first in the low half. Arrays of such codes are still counted in elements, and rows have even
// length.
struct u4 {
  u8 pair;
};

// kCodesOf: element codes in one Code. code_count: the Codes of n elements, which is also where element n begins.
template <class Code>
inline constexpr int kCodesOf = 1;
template <>
inline constexpr int kCodesOf<u4> = 2;
template <class Code>
LT_FN constexpr i64 code_count(i64 n) {
  return n / kCodesOf<Code>;
}
template <class Code>
inline constexpr int kCodeBits = 8 * static_cast<int>(sizeof(Code)) / kCodesOf<Code>;
