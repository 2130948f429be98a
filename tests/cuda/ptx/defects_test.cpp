// Defects that are put into the PTX of a shipped kernel are found: a lost sign, barriers of a warp left out, a wrong
// mask, a read beyond an allocation.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <sstream>

#include "backend/cpu/cpu_backend.h"
#include "cuda/step_cases.h"
#include "cuda_emulator.h"
#include "ptx_support.h"
#include "runtime.h"

namespace lowtide {
namespace {

using namespace lowtide::testing;

// AdamW with dynamic8 states.
const std::string kKernel = "step_kernelINS0_5AdamWENS0_8Dynamic8EEE";

// Where the kernel's text begins and ends; nowhere in other files.
std::pair<size_t, size_t> place_of(const std::string& text, const std::string& kernel) {
  const size_t at = text.find("11cuda_device11" + kernel);
  if (at == text.npos) return {0, 0};
  return {at, std::min(text.find(".entry", at), text.size())};
}

// Replaces all matches in the kernel, or the one of this number; counts them.
struct Edit {
  bool stochastic;
  std::string wanted, by;
  int number = -1;
  int* count = nullptr;

  std::string operator()(const std::string& text) const {
    const auto [begin, end] = place_of(text, kKernel);
    if (begin == end) return text;
    const std::string body = text.substr(begin, end - begin);
    const std::regex pattern(wanted);
    std::string out;
    size_t last = 0;
    int i = 0;
    for (std::sregex_iterator it(body.begin(), body.end(), pattern), none; it != none; ++it, ++i) {
      if (number >= 0 && i != number) continue;
      const auto at = static_cast<size_t>(it->position());
      out += body.substr(last, at - last) + it->format(by);
      last = at + static_cast<size_t>(it->length());
    }
    if (count) *count = i;
    return text.substr(0, begin) + out + body.substr(last) + text.substr(end);
  }
};

// How a step of the edited kernel shows its defect: the executor's words, or "N bytes differ"; "": not at all.
std::string found_in_step(const Edit& edit, int64_t rows = 3, int64_t length = 4096) {
  cuda_emulator::reset({});
  ptx::edit_sources(edit);
  Rng rng(77);
  StepCase start(1, 2, DType::kBF16, DType::kBF16, rows, length, rng);
  make_usual(start, rng);
  start.stochastic = edit.stochastic ? 2 : 0;
  start.origin = {};
  StepCase wanted = start, got = start;
  StepItem on_host = wanted.item();
  cpu::make_backend("")->step({&on_host, 1}, 1, false, nullptr);
  std::string found;
  {
    DeviceCase there(got, 0, false);
    StepItem item = there.item();
    const cudaError_t error = try_step_on_device({&item, 1}, {1, 2});
    found = cuda_emulator::last_failure();
    EXPECT_EQ(error == cudaSuccess, found.empty());
    if (error == cudaSuccess) {
      there.fetch();
      const int64_t bytes = differing_bytes(got, wanted);
      if (bytes) found = std::to_string(bytes) + " bytes differ";
    }
  }
  cuda_emulator::take_misuses();
  cuda_emulator::reset({});
  ptx::edit_sources({});
  return found;
}

TEST(PtxDefects, AreNoneInWhatIsShipped) {
  EXPECT_EQ(found_in_step({false, "never there", ""}), "");
  EXPECT_EQ(found_in_step({true, "never there", ""}), "");
}

// The sum of products that extends a sign to a table's address, without it, as the byte permutation was that once stood
// there.
TEST(PtxDefects, ALostSignIsFound) {
  int count = 0;
  const std::string found = found_in_step({false, R"(dp2a\.lo\.s32\.u32)", "dp2a.lo.u32.u32", -1, &count});
  EXPECT_GT(count, 0);
  EXPECT_NE(found.find("shared memory, where no variable is"), std::string::npos) << found;
  std::printf("%d sums replaced: %s\n", count, found.c_str());
}

TEST(PtxDefects, TheBytePermutationOfCudaLosesTheSign) {
  std::stringstream text;
  text << std::ifstream(LT_PTX_BYTE_PERM).rdbuf();
  const ptx::Source source(text.str(), "byte_perm.ptx");
  const auto program = ptx::decode(source, source.functions().begin()->second);
  std::vector<uint32_t> from = {0x3f001234, 0xbf001234}, to(2);
  ptx::Memory memory;
  memory.add(from), memory.add(to);
  const uint64_t addresses[] = {reinterpret_cast<uint64_t>(from.data()), reinterpret_cast<uint64_t>(to.data())};
  std::vector<std::byte> parameters(sizeof addresses);
  std::memcpy(parameters.data(), addresses, sizeof addresses);
  ptx::run_grid(*program, parameters, 1, 2, memory.find(), {});
  // The sign would be 0xffffbf00; masked selectors repeat the byte instead.
  EXPECT_EQ(to, (std::vector<uint32_t>{0x3f3f3f00, 0xbfbfbf00}));
}

// Rows of one short block, and a row of plain tiles: so many that warps take several tiles, one after the other.
TEST(PtxDefects, AMissingBarrierOfTheWarpIsFound) {
  const std::pair<int64_t, int64_t> shapes[] = {{6400, 16}, {1, 256 * 32 * 10}};
  for (const auto& [rows, length] : shapes)
    for (const bool stochastic : {false, true}) {
      int count = 1, found = 0;
      for (int i = 0; i < count; ++i) {
        const std::string words = found_in_step({stochastic, R"(bar\.warp\.sync -1;)", "", i, &count}, rows, length);
        found += words.find("without a barrier") != std::string::npos;
        if (words.empty()) std::printf("barrier %d of %s is not needed here\n", i, kKernel.c_str());
      }
      EXPECT_GT(found, 0);
      std::printf("%d of %d missing barriers found in rows of %lld\n", found, count, static_cast<long long>(length));
    }
}

TEST(PtxDefects, AWrongMaskIsFound) {
  const std::string largest = R"((redux\.sync\.max\.u32 [^;]*), [^,;]*;)";
  const std::string lacks = found_in_step({false, largest, "$1, 0x7fffffff;"});
  EXPECT_NE(lacks.find("lacks the thread"), std::string::npos) << lacks;
  const std::string vote = found_in_step({true, R"((vote\.sync\.any\.pred [^;]*), [^,;]*;)", "$1, 0xfffffffe;"});
  EXPECT_NE(vote.find("lacks the thread"), std::string::npos) << vote;
}

TEST(PtxDefects, AReadBeyondAnAllocationIsFound) {
  for (const bool stochastic : {false, true}) {
    const std::string found =
        found_in_step({stochastic, R"((ld\.global\.v4\.u32 \{[^}]*\}, \[%rd\d+)\+512\];)", "$1+528];"});
    EXPECT_NE(found.find("which no allocation holds"), std::string::npos) << found;
  }
}

}  // namespace
}  // namespace lowtide
