// Which code a device runs. CUDA C++ Programming Guide, "Binary compatibility" and "PTX compatibility".
#include "backend/cuda/host/code.h"

#include <vector>

#include "host_support.h"

namespace lowtide::cuda_host {
namespace {

TEST(CudaCode, IsTheNewestThatTheDeviceRuns) {
  constexpr int kMachine[] = {75, 80, 90, 100, 120}, kPtx[] = {75, 120};
  const Code code{kMachine, kPtx};
  const struct {
    int major, minor;
    const char* wanted;
  } kCases[] = {{7, 0, ""},
                {7, 5, "sm_75"},
                {8, 0, "sm_80"},
                {8, 6, "sm_80"},
                {8, 9, "sm_80"},
                {9, 0, "sm_90"},
                {10, 0, "sm_100"},
                {10, 3, "sm_100"},
                {12, 0, "sm_120"},
                {12, 1, "sm_120"},
                {11, 0, "compute_75"},  // between two majors that have machine code
                {13, 0, "compute_120"}};
  for (const auto& [major, minor, wanted] : kCases)
    EXPECT_EQ(code_for(code, major, minor), wanted) << major << "." << minor;
  EXPECT_EQ(code_for({{}, kPtx}, 9, 0), "compute_75");
}

TEST(CudaCode, NamesTheDevicesThatRunIt) {
  const struct {
    std::vector<int> machine, ptx;
    const char* wanted;
  } kCases[] = {{{75, 80, 90, 100, 120}, {75, 120}, "7.5 or newer"},
                {{90}, {90}, "9.0 or newer"},
                {{80, 86, 90}, {90}, "8.0 to 8.9, 9.0 or newer"},
                {{86, 90}, {}, "8.6 to 8.9, 9.0 to 9.9"}};
  for (const auto& [machine, ptx, wanted] : kCases) {
    const Code code{machine, ptx};
    EXPECT_EQ(capabilities(code), wanted);
    for (int device = 70; device < 130; ++device) {
      bool named = !ptx.empty() && device >= ptx[0];
      for (const int made : machine) named = named || (made / 10 == device / 10 && device >= made);
      EXPECT_EQ(!code_for(code, device / 10, device % 10).empty(), named) << wanted << ", " << device;
    }
  }
  // These tests are built for 9.0.
  expect_words(words_of(cudaErrorNoKernelImageForDevice), {"compute capability 9.0 or newer"});
}

}  // namespace
}  // namespace lowtide::cuda_host
