// How threads of a warp meet, and what the executor says of those that do not: shuffles and votes by the PTX ISA,
// masks, barriers, and threads that have parted.
#include "ptx_support.h"

namespace ptx {
namespace {

// One result for each thread of a block of `threads`: the body sets %o; %t is the thread.
std::vector<uint32_t> of_threads(const std::string& body, uint32_t threads, bool split = false) {
  std::vector<uint32_t> out(threads, 0xdeadbeef);
  Memory memory;
  memory.add(out);
  const std::string text =
      ".reg .b64 %at<3>; .reg .b32 %t, %o, %x<8>; .reg .pred %p, %q;\n"
      "ld.param.u64 %at0, [p0]; mov.u32 %t, %tid.x; mul.wide.u32 %at1, %t, 4; add.s64 %at0, %at0, %at1;\n"
      "mov.b32 %o, 0;\n" +
      body + "\nst.global.u32 [%at0], %o;\n";
  launch(entry(text, 1), {reinterpret_cast<uint64_t>(out.data())}, 1, threads, memory, {Choice::kNearest, 3, split});
  return out;
}

std::string failure_of(const std::string& body, uint32_t threads) {
  try {
    of_threads(body, threads);
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "";
}

void expect_failure(const std::string& body, uint32_t threads, const std::string& words) {
  const std::string text = failure_of(body, threads);
  EXPECT_NE(text.find(words), std::string::npos) << "got '" << text << "' of " << body;
}

using Lanes = std::vector<uint32_t>;
template <class Fn>
Lanes lanes(Fn&& fn) {
  Lanes out;
  for (uint32_t lane = 0; lane < kWarp; ++lane) out.push_back(static_cast<uint32_t>(fn(static_cast<int>(lane))));
  return out;
}

TEST(PtxMeetings, ShuffleByTheirModes) {
  const auto shuffled = [](const std::string& mode, int b, int c) {
    return of_threads("shfl.sync." + mode + ".b32 %o|%p, %t, " + std::to_string(b) + ", " + std::to_string(c) +
                          ", -1; @!%p or.b32 %o, %o, 256;",
                      32);
  };
  // Beyond the segment a lane gets its own value, and the predicate is false.
  EXPECT_EQ(shuffled("down", 2, 31), lanes([](int l) { return l + 2 <= 31 ? l + 2 : l + 256; }));
  EXPECT_EQ(shuffled("bfly", 16, 31), lanes([](int l) { return l ^ 16; }));
  EXPECT_EQ(shuffled("idx", 5, 31), lanes([](int) { return 5; }));
  // Segments of 8 lanes: the mask 0x18 in bits 8 to 12 of c.
  EXPECT_EQ(shuffled("idx", 3, 0x181f), lanes([](int l) { return l / 8 * 8 + 3; }));
  EXPECT_EQ(shuffled("down", 7, 0x181f), lanes([](int l) { return l % 8 == 0 ? l + 7 : l + 256; }));
  EXPECT_EQ(shuffled("bfly", 8, 0x181f), lanes([](int l) { return l & 8 ? l ^ 8 : l + 256; }));
  // A clamp below the end of the warp.
  EXPECT_EQ(shuffled("idx", 20, 15), lanes([](int l) { return l + 256; }));
  // By 33 is by 1.
  EXPECT_EQ(shuffled("down", 33, 31), lanes([](int l) { return l + 1 <= 31 ? l + 1 : l + 256; }));
}

TEST(PtxMeetings, Vote) {
  const std::string third = "rem.u32 %x0, %t, 3; setp.eq.s32 %p, %x0, 0;";
  uint32_t mask = 0;
  for (uint32_t lane = 0; lane < 32; lane += 3) mask |= 1u << lane;
  EXPECT_EQ(of_threads(third + "vote.sync.ballot.b32 %o, %p, -1;", 32), lanes([&](int) { return mask; }));
  EXPECT_EQ(of_threads(third + "vote.sync.ballot.b32 %o, !%p, -1;", 32), lanes([&](int) { return ~mask; }));
  EXPECT_EQ(of_threads(third + "vote.sync.any.pred %q, %p, -1; selp.b32 %o, 1, 0, %q;", 32),
            lanes([](int) { return 1; }));
  // Halves of a warp vote for themselves.
  EXPECT_EQ(of_threads("setp.lt.u32 %p, %t, 16; selp.b32 %x0, 0x0000ffff, 0xffff0000, %p; mov.pred %q, -1;"
                       "vote.sync.ballot.b32 %o, %q, %x0;",
                       32),
            lanes([](int l) { return l < 16 ? 0xffffu : 0xffff0000u; }));
}

TEST(PtxMeetings, Reduce) {
  // As numbers without a sign; halves of a warp for themselves.
  EXPECT_EQ(of_threads("sub.s32 %x0, 7, %t; redux.sync.max.u32 %o, %x0, -1;", 32), lanes([](int) { return -1; }));
  EXPECT_EQ(of_threads("setp.lt.u32 %p, %t, 16; selp.b32 %x0, 0x0000ffff, 0xffff0000, %p; xor.b32 %x1, %t, 5;"
                       "redux.sync.max.u32 %o, %x1, %x0;",
                       32),
            lanes([](int l) { return l < 16 ? 15 : 31; }));
}

TEST(PtxMeetings, FindWrongMasks) {
  expect_failure("shfl.sync.bfly.b32 %o, %t, 1, 31, 0x7fffffff;", 32, "lacks the thread");
  expect_failure("redux.sync.max.u32 %o, %t, 0xfffffffe;", 32, "lacks the thread");
  expect_failure("vote.sync.ballot.b32 %o, %p, -1;", 24, "names threads that are not there");
  expect_failure("setp.lt.u32 %p, %t, 8; @%p bra $L; bar.warp.sync -1; $L:", 32, "for which others of its warp wait");
  expect_failure("setp.lt.u32 %p, %t, 8; @%p bra $L; bar.warp.sync -1; bra $E; $L: vote.sync.any.pred %q, %p, -1; $E:",
                 32, "threads that never meet");
  expect_failure("setp.lt.u32 %p, %t, 8; @%p exit; bar.warp.sync -1;", 32, "have ended");
  expect_failure("setp.lt.u32 %p, %t, 8; @%p bra $L; shfl.sync.idx.b32 %o, %t, 3, 31, 0xffffff00; $L:", 32,
                 "which is not in it");
  EXPECT_EQ(failure_of("setp.lt.u32 %p, %t, 8; @%p bra $L; bar.warp.sync 0xffffff00; $L:", 32), "");
}

TEST(PtxMeetings, FindBlocksThatPart) {
  EXPECT_EQ(failure_of("bar.sync 0;", 100), "");
  expect_failure("setp.lt.u32 %p, %t, 32; @%p bra $L; bar.sync 0; $L:", 64, "never come");
  expect_failure("setp.lt.u32 %p, %t, 8; @%p bra $L; bar.sync 0; $L:", 32, "");
  expect_failure("setp.lt.u32 %p, %t, 8; @%p bra $L; bar.sync 0; bra $E; $L: bar.sync 0; $E:", 32, "at another one");
}

// Lanes part, take loops of different lengths and come together: in lock step, and apart in a random order.
TEST(PtxMeetings, PartAndComeTogether) {
  const std::string body =
      "mov.u32 %x0, %t; $L: add.s32 %o, %o, %x0; sub.s32 %x0, %x0, 1; setp.gt.s32 %p, %x0, 0;"
      "@%p bra $L; shfl.sync.bfly.b32 %x1, %o, 1, 31, -1; add.s32 %o, %o, %x1;";
  const auto sum = [](int n) { return n * (n + 1) / 2; };
  for (const bool split : {false, true})
    EXPECT_EQ(of_threads(body, 32, split), lanes([&](int l) { return sum(l) + sum(l ^ 1); }));
}

TEST(PtxCalls, PassArgumentsAndResults) {
  const std::string function =
      ".func (.param .b32 r) twice(.param .b32 a, .param .b64 b)\n{\n.reg .b32 %x<2>; .reg .b64 %y; .reg .pred %p;\n"
      "ld.param.u32 %x0, [a+0]; ld.param.u64 %y, [b]; cvt.u32.u64 %x1, %y; setp.eq.s32 %p, %x0, 3; @%p bra $F;\n"
      "add.s32 %x0, %x0, %x1; $F: st.param.b32 [r+0], %x0; ret;\n}\n";
  std::vector<uint32_t> out(32);
  Memory memory;
  memory.add(out);
  const std::string body =
      ".reg .b64 %at<3>; .reg .b32 %t, %o; .reg .pred %p;\n ld.param.u64 %at0, [p0]; mov.u32 %t, %tid.x;\n"
      "mul.wide.u32 %at1, %t, 4; add.s64 %at0, %at0, %at1; mov.u64 %at2, 100; mov.b32 %o, 7;\n"
      "setp.gt.u32 %p, %t, 15; @%p bra $E;\n"
      "{ .param .b32 p_a; .param .b64 p_b; .param .b32 back; st.param.b32 [p_a+0], %t; st.param.b64 [p_b+0], %at2;\n"
      "call.uni (back), twice, (p_a, p_b); ld.param.u32 %o, [back+0]; }\n"
      "$E: bar.warp.sync -1; st.global.u32 [%at0], %o;\n";
  launch(entry(body, 1, function), {reinterpret_cast<uint64_t>(out.data())}, 1, 32, memory);
  EXPECT_EQ(out, lanes([](int l) { return l > 15 ? 7 : l == 3 ? 3 : l + 100; }));
}

}  // namespace
}  // namespace ptx
