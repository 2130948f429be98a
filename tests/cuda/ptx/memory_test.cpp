// The executor finds wrong accesses of memory: bounds, alignment, what nothing has written, and threads that race.
#include "ptx_support.h"

namespace ptx {
namespace {

const std::string kShared = ".shared .align 16 .b8 first[128];\n.shared .align 16 .b8 second[128];\n";
const std::string kBegin =
    ".reg .b64 %at, %w<4>; .reg .b32 %t, %o, %s, %x<4>; .reg .pred %p; .reg .b16 %h;\n"
    "ld.param.u64 %at, [p0]; mov.u32 %t, %tid.x; mov.u32 %s, first; shl.b32 %x0, %t, 2; add.s32 %x0, %x0, %s;\n";

std::string failure_of(const std::string& body, uint32_t threads = 1, size_t bytes = 64) {
  std::vector<std::byte> memory(bytes);
  Memory all;
  all.add(memory);
  try {
    launch(entry(kBegin + body, 1, kShared), {reinterpret_cast<uint64_t>(memory.data())}, 1, threads, all);
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "";
}
void expect_failure(const std::string& body, uint32_t threads, const std::string& words) {
  const std::string text = failure_of(body, threads);
  EXPECT_NE(text.find(words), std::string::npos) << "got '" << text << "' of " << body;
}

TEST(PtxMemory, HasBoundsAndAlignment) {
  EXPECT_EQ(failure_of("ld.global.v4.u32 {%x0, %x1, %x2, %x3}, [%at+48];"), "");
  expect_failure("ld.global.v4.u32 {%x0, %x1, %x2, %x3}, [%at+64];", 1, "no allocation");
  expect_failure("ld.global.u8 %o, [%at+64];", 1, "no allocation");
  expect_failure("st.global.u32 [%at+-4], %t;", 1, "no allocation");
  expect_failure("ld.global.u64 %w0, [%at+60];", 1, "not aligned");
  expect_failure("ld.global.v4.u32 {%x0, %x1, %x2, %x3}, [%at+8];", 1, "not aligned");
  expect_failure("st.shared.u32 [first+126], %t;", 1, "not aligned");
  // One variable does not run into the next.
  expect_failure("st.shared.u32 [first+128], %t;", 1, "no variable");
  expect_failure("mov.u32 %x1, 0; st.shared.u32 [%x1], %t;", 1, "no variable");
  expect_failure("ld.param.u64 %w0, [p0+8];", 1, "beyond the parameters");
}

TEST(PtxMemory, IsReadOnlyWhereWritten) {
  EXPECT_EQ(failure_of("st.shared.u32 [%x0], %t; ld.shared.u32 %o, [%x0];", 32), "");
  expect_failure("ld.shared.u32 %o, [%x0];", 32, "nothing has written");
  expect_failure("st.shared.u8 [%x0], %t; ld.shared.u32 %o, [%x0];", 32, "nothing has written");
  const std::string local = ".local .align 16 .b8 depot[32]; mov.u64 %w0, depot; ";
  EXPECT_EQ(failure_of(local + "st.local.u32 [%w0+4], %t; ld.local.u32 %o, [%w0+4];", 32), "");
  expect_failure(local + "st.local.u32 [%w0], %t; ld.local.u64 %w1, [%w0];", 32, "nothing has written");
  expect_failure(local + "st.local.u32 [%w0+32], %t;", 32, "outside local memory");
}

// Shared memory of one block is not another's.
TEST(PtxMemory, IsPoisonedBetweenBlocks) {
  std::vector<uint32_t> memory(16);
  Memory all;
  all.add(memory);
  const std::string body = kBegin +
                           "mov.u32 %x1, %ctaid.x; setp.eq.s32 %p, %x1, 0; @%p st.shared.u32 [%x0], %t;"
                           "ld.shared.u32 %o, [%x0];";
  EXPECT_THROW(launch(entry(body, 1, kShared), {reinterpret_cast<uint64_t>(memory.data())}, 2, 1, all), Failure);
}

TEST(PtxMemory, FindsRaces) {
  const std::string write = "st.shared.u32 [%x0], %t; ";
  const std::string others = "xor.b32 %x1, %t, 1; shl.b32 %x1, %x1, 2; add.s32 %x1, %x1, %s; ";
  const std::string read = "ld.shared.u32 %o, [%x1]; ";
  EXPECT_EQ(failure_of(write + others + "bar.warp.sync -1; " + read, 32), "");
  expect_failure(write + others + read, 32, "without a barrier");
  // Shuffles and votes order nothing.
  expect_failure(write + others + "vote.sync.any.pred %p, %p, -1; " + read, 32, "without a barrier");
  // A write behind the reads of others.
  expect_failure(write + others + "bar.warp.sync -1; " + read + write, 32, "have read without a barrier");
  EXPECT_EQ(failure_of(write + others + "bar.warp.sync -1; " + read + "bar.warp.sync -1; " + write, 32), "");
  // Between warps it takes the block's barrier.
  const std::string far = "xor.b32 %x1, %t, 32; rem.u32 %x1, %x1, 32; ";
  const std::string of_first =
      "setp.lt.u32 %p, %t, 32; @%p st.shared.u32 [%x0], %t; and.b32 %x1, %t, 31; shl.b32 %x1, %x1, 2;"
      "add.s32 %x1, %x1, %s; ";
  expect_failure(of_first + "bar.warp.sync -1; ld.shared.u32 %o, [%x1];", 64, "");
  EXPECT_EQ(failure_of(of_first + "bar.sync 0; ld.shared.u32 %o, [%x1];", 64), "");
  // Two writers of one word.
  expect_failure("st.shared.u32 [first], %t;", 2, "without a barrier");
  // A barrier of half a warp orders that half.
  const std::string halves = "setp.lt.u32 %p, %t, 16; selp.b32 %x2, 0xffff, 0xffff0000, %p; ";
  EXPECT_EQ(failure_of(halves + write + others + "bar.warp.sync %x2; " + read, 32), "");
  expect_failure(
      halves + write + "xor.b32 %x1, %t, 16; shl.b32 %x1, %x1, 2; add.s32 %x1, %x1, %s; bar.warp.sync %x2; " + read, 32,
      "without a barrier");
}

TEST(PtxMemory, TakesAtomics) {
  std::vector<uint32_t> memory = {0, 50, 0};
  Memory all;
  all.add(memory);
  launch(entry(kBegin + "and.b32 %x1, %t, 31; mov.b32 %x2, 1; shl.b32 %x2, %x2, %x1; atom.or.b32 %o, [%at], %x2;"
                        "add.s32 %x3, %t, 7; atom.global.min.u32 %o, [%at+4], %x3; atom.global.add.u32 %o, [%at+8], 2;",
               1, kShared),
         {reinterpret_cast<uint64_t>(memory.data())}, 3, 40, all);
  EXPECT_EQ(memory, (std::vector<uint32_t>{0xffffffff, 7, 240}));
}

// Each thread gets what was there before it.
TEST(PtxMemory, CountsByAtomics) {
  std::vector<uint32_t> memory(2 + 120);
  Memory all;
  all.add(memory);
  launch(entry(kBegin + "atom.global.add.u64 %w0, [%at], 1; shl.b64 %w1, %w0, 2; add.s64 %w1, %w1, %at;"
                        "mov.b32 %x1, 1; atom.global.add.u32 %o, [%w1+8], %x1;",
               1, kShared),
         {reinterpret_cast<uint64_t>(memory.data())}, 3, 40, all);
  std::vector<uint32_t> wanted(memory.size(), 1);
  wanted[0] = 120, wanted[1] = 0;
  EXPECT_EQ(memory, wanted);
}

TEST(PtxSources, NameWhatIsNotKnown) {
  const auto error_of = [](const std::string& body) -> std::string {
    try {
      launch(entry(".reg .b32 %a<3>; .reg .b64 %w; .reg .pred %p;\n" + body, 0), {}, 1, 1, {});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const auto expect = [&](const std::string& body, const std::string& words) {
    EXPECT_NE(error_of(body).find(words), std::string::npos) << error_of(body);
  };
  EXPECT_EQ(error_of("mov.b32 %a0, 1;"), "");
  expect("mov.b32 %a0, 1;\nfrobnicate.u32 %a0, %a1;", "line 8: unknown instruction frobnicate.u32");
  expect("add.s32 %a0, %w, 1;", "another width");
  expect("add.s32 %a0, %b1, 1;", "unknown register %b1");
  expect("mov.b32 %a7, 1;", "no register %a7");
  expect("bra $nowhere;", "no label $nowhere");
  expect("ld.global.v8.u32 %a0, [%w];", "unknown instruction ld.global.v8.u32");
  expect("bar.sync 1;", "only barrier 0");
}

}  // namespace
}  // namespace ptx
