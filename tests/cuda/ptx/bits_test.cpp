// Permutations, fields, shifts and conversions, from the tables of the PTX ISA.
#include "ptx_support.h"

namespace ptx {
namespace {

TEST(PtxBits, PermuteBytesAndRepeatSigns) {
  // Bytes 0 to 7, from the lowest of a to the highest of b.
  const uint64_t a = 0x33221180, b = 0x77f65544;
  check("prmt.b32 %o, %a, %b, %c;", {{{a, b, 0x3210}, a},
                                     {{a, b, 0x7654}, b},
                                     {{a, b, 0x0123}, 0x80112233},
                                     {{a, b, 0x5140}, 0x55114480},
                                     // The upper bit of a selector: eight times the byte's sign.
                                     {{a, b, 0x8888}, 0xffffffff},
                                     {{a, b, 0x9999}, 0},
                                     {{a, b, 0xe6f7}, 0xfff60077},
                                     // Bits above the lowest 16 do not count.
                                     {{a, b, 0xabcd3210}, a}});
  check("prmt.b32 %o, %a, 0, 0xbb32;", {{{0x80000000}, 0xffff8000}, {{0x3f000000}, 0x00003f00}});
}

TEST(PtxBits, Combine) {
  check("and.b32 %o, %a, %b;", {{{0xf0f0, 0xff00}, 0xf000}});
  check("xor.b64 %ow, %aw, %bw;", {{{~uint64_t{0}, 1}, ~uint64_t{1}}});
  check("not.b32 %o, %a;", {{{0}, 0xffffffff}});
  check("popc.b32 %o, %a;", {{{0xf0f0f0f0}, 16}});
}

TEST(PtxBits, ShiftAtMostByTheWidth) {
  check("shl.b32 %o, %a, %b;", {{{1, 31}, 0x80000000}, {{1, 32}, 0}, {{1, 0xffffffff}, 0}});
  check("shr.u32 %o, %a, %b;", {{{0x80000000, 31}, 1}, {{0x80000000, 32}, 0}});
  check("shr.s32 %o, %a, %b;", {{{0x80000000, 31}, 0xffffffff}, {{0x80000000, 99}, 0xffffffff}, {{5, 99}, 0}});
  check("shr.s64 %ow, %aw, %b;", {{{uint64_t{1} << 63, 64}, ~uint64_t{0}}});
  check("shl.b64 %ow, %aw, %b;", {{{3, 63}, uint64_t{1} << 63}, {{3, 64}, 0}});
}

TEST(PtxBits, InsertFields) {
  check("bfi.b32 %o, %a, %b, %c, %d;", {{{0x5, 0, 4, 4}, 0x50},
                                        {{0xff, 0, 28, 8}, 0xf0000000},
                                        {{0xff, 7, 0, 0}, 7},
                                        {{0xff, 7, 32, 8}, 7},
                                        {{0, 0xffffffff, 8, 8}, 0xffff00ff}});
  check("bfi.b64 %ow, %aw, %bw, 5, 59;", {{{1, 3}, 35}});
}

TEST(PtxConversions, ExtendCutAndClamp) {
  check("cvt.s64.s32 %ow, %a;", {{{0x80000000}, 0xffffffff80000000}});
  check("cvt.u64.u32 %ow, %a;", {{{0x80000000}, 0x80000000}});
  check("cvt.u32.u16 %o, %ah;", {{{0xffff}, 0xffff}});
  check("cvt.s32.s16 %o, %ah;", {{{0xffff}, 0xffffffff}});
  check("cvt.s32.s16 %o, %a;", {{{0x17fff}, 0x7fff}, {{0x18000}, 0xffff8000}});
  check("cvt.s16.s8 %oh, %ah;", {{{0x80}, 0xff80}});
  check("cvt.s32.s8 %o, %a;", {{{0x1ff}, 0xffffffff}});
  check("cvt.u16.u32 %oh, %a;", {{{0x12345678}, 0x5678}});
  check("cvt.rzi.s32.f32 %o, %a;",
        {{{bits(-1.9f)}, 0xffffffff}, {{bits(3e9f)}, 0x7fffffff}, {{bits(-3e9f)}, 0x80000000}, {{0x7fffffff}, 0}});
  check("cvt.rzi.ftz.s32.f32 %o, %a;", {{{bits(-1.9f)}, 0xffffffff}, {{1}, 0}});
  check("cvt.rn.f32.u32 %o, %a;", {{{0xffffffff}, bits(0x1p32f)}, {{0x1000001}, bits(0x1p24f)}});
  check("cvt.rn.f32.s32 %o, %a;", {{{0x80000000}, bits(-0x1p31f)}});
}

TEST(PtxConversions, RoundToHalves) {
  // The first operand is the upper half.
  check("cvt.rn.f16x2.f32 %o, %a, %b;",
        {{{bits(1), bits(2)}, 0x3c004000},
         {{bits(65519), bits(65520)}, 0x7bff7c00},        // the largest, and what rounds to infinity
         {{bits(0x1p-24f), bits(0x1p-25f)}, 0x00010000},  // the least denormal; half of it goes to even
         {{bits(0x1.8p-25f), bits(-0x1p-24f)}, 0x00018001},
         {{bits(0x1.ff8p-15f), bits(0x1.ffcp-15f)}, 0x03ff0400},      // carries into the least normal number
         {{bits(1.00048828125f), bits(1.00146484375f)}, 0x3c003c02},  // ties to even
         {{0x7fc00000, 0xff800000}, 0x7ffffc00}});
  check("cvt.rn.bf16x2.f32 %o, %a, %b;",
        {{{bits(1), bits(-2)}, 0x3f80c000},
         {{0x3f808000, 0x3f818000}, 0x3f803f82},  // ties to even
         {{0x3f808001, 0x00000001}, 0x3f810000},
         {{0x00018000, 0x7f7fffff}, 0x00027f80},  // denormals are kept; the largest overflows
         {{0x7fc00000, 0x7f800000}, 0x7fff7f80}});
  check("cvt.f32.f16 %o, %ah;", {{{0x0001}, bits(0x1p-24f)},
                                 {{0x8000}, 0x80000000},
                                 {{0x7bff}, bits(65504)},
                                 {{0xfc00}, 0xff800000},
                                 {{0x7c01}, 0x7fffffff},
                                 {{0x0400}, bits(0x1p-14f)}});
}

TEST(PtxMoves, PackAndUnpack) {
  check("mov.b32 %o, {%ah, %bh};", {{{0x1111, 0x2222}, 0x22221111}});
  check("mov.b64 %ow, {%a, %b};", {{{0x11111111, 0x22222222}, 0x2222222211111111}});
  check("mov.b64 {%a, %b}, %cw; sub.s32 %o, %b, %a;", {{{0, 0, 0x300000001}, 2}});
  check("mov.u32 %o, %nctaid.x;", {{{}, 1}});
}

}  // namespace
}  // namespace ptx
