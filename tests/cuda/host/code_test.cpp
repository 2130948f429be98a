// Which code a device runs. CUDA C++ Programming Guide, "Binary compatibility" and "PTX compatibility".
#include "backend/cuda/host/code.h"

#include <gtest/gtest.h>

namespace lowtide::cuda_host {
namespace {

TEST(CudaCode, IsTheNewestThatTheDeviceRuns) {
  constexpr int kMachine[] = {80, 90, 100, 120}, kPtx[] = {80, 120};
  const Code code{kMachine, kPtx};
  const struct {
    int major, minor;
    const char* wanted;
  } kCases[] = {{7, 5, ""},
                {8, 0, "sm_80"},
                {8, 6, "sm_80"},
                {8, 7, "sm_80"},
                {8, 9, "sm_80"},
                {9, 0, "sm_90"},
                {10, 0, "sm_100"},
                {10, 3, "sm_100"},
                {12, 0, "sm_120"},
                {12, 1, "sm_120"},
                {11, 0, "compute_80"},  // between two majors that have machine code
                {13, 0, "compute_120"}};
  for (const auto& [major, minor, wanted] : kCases)
    EXPECT_EQ(code_for(code, major, minor), wanted) << major << "." << minor;
  EXPECT_EQ(code_for({{}, kPtx}, 9, 0), "compute_80");
}

}  // namespace
}  // namespace lowtide::cuda_host
