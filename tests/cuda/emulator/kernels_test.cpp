// Kernels: races are seen in some order, and threads that do not meet are told apart.
#include <cstdio>

#include "emulator_support.h"

namespace cuda_emulator {
namespace {

class Kernels : public Emulated {};

// PTX's prmt would repeat a sign for 0xb; CUDA's function masks that away, so that nobody may ask for it.
TEST_F(Kernels, BytesArePickedByThreeBitsEach) {
  EXPECT_EQ(__byte_perm(0x83828180u, 0x87868584u, 0x7120), 0x87818280u);
  EXPECT_EQ(__byte_perm(0x83828180u, 0x87868584u, 0x62), 0x80808682u);
  EXPECT_DEATH(std::printf("%u", __byte_perm(0x80000000u, 0, 0xbb32)), "selector 0xbb32");
}

TEST_F(Kernels, ShufflesHaveADefinedWidth) {
  for (const int width : {1, 2, 4, 8, 16, 32}) EXPECT_EQ(shuffle_width(width), static_cast<unsigned>(width));
  for (const int width : {0, -1, 24, 64})
    EXPECT_DEATH(std::printf("%u", shuffle_width(width)), "wanted a power of two");
}

TEST_F(Kernels, FastDivisionByTheLargestIsZero) {
  EXPECT_EQ(__fdividef(6, 0x1p126f), 6 * 0x1p-126f);
  EXPECT_EQ(__fdividef(0x1p127f, 0x1.8p126f), 0.f);
  EXPECT_TRUE(std::isnan(__fdividef(INFINITY, 0x1p127f)));
  EXPECT_EQ(__fdividef(1, INFINITY), 0.f);
}

// Forgets to wait between a write by one warp and a read by another.
__global__ void race(uint32_t* out) {
  __shared__ uint32_t value[64];
  value[threadIdx.x] = threadIdx.x + 1000 * blockIdx.x;
  __syncwarp();
  out[blockIdx.x * 64 + threadIdx.x] = value[63 - threadIdx.x] - 1000 * blockIdx.x;
}

TEST_F(Kernels, RacesAreSeenInSomeOrder) {
  constexpr unsigned kBlocks = 200;
  uint32_t* out = on_device<uint32_t>(64 * kBlocks);
  ok(launch(nullptr, kBlocks, 64, race, out));
  const auto got = fetch(out, 64 * kBlocks, nullptr);
  unsigned wrong = 0;
  for (unsigned b = 0; b < kBlocks; ++b) {
    bool all = true;
    for (unsigned t = 0; t < 64; ++t) all = all && got[b * 64 + t] == 63 - t;
    wrong += !all;
  }
  std::printf("a missing __syncthreads is seen in %u of %u blocks\n", wrong, kBlocks);
  EXPECT_GT(wrong, kBlocks / 2);
  ok(cudaFree(out));
}

enum Misuse { kLacksCaller, kReadsOutside, kNeverComes, kHasEnded, kHalfBlock, kMisaligned, kMisuses };
__global__ void misused(int how, uint32_t* memory) {
  const uint32_t lane = threadIdx.x % 32;
  if (how == kLacksCaller) __ballot_sync(0xfffffffeu, 1);
  if (how == kReadsOutside && lane < 16) __shfl_sync(0xffffu, lane, 20);
  if (how == kNeverComes) lane < 16 ? __syncwarp() : __syncthreads();
  if (how == kHasEnded && lane < 31) __shfl_xor_sync(kAll, lane, 1);
  if (how == kHalfBlock && threadIdx.x < 32) __syncthreads();
  if (how == kMisaligned) __ldg(reinterpret_cast<const uint4*>(memory + 1));
}

TEST_F(Kernels, MisuseFailsTheLaunchAndNamesTheReason) {
  const char* const wanted[] = {"lacks the caller", "reads lane 20", "never come",
                                "never come",       "never come",    "misaligned"};
  for (int how = 0; how < kMisuses; ++how) {
    reset({});
    uint32_t* memory = on_device<uint32_t>(64);
    ok(launch(nullptr, 3, 64, misused, how, memory));
    const cudaError_t error = cudaStreamSynchronize(nullptr);
    EXPECT_EQ(error, how == kMisaligned ? cudaErrorMisalignedAddress : cudaErrorLaunchFailure);
    EXPECT_EQ(cudaFree(memory), error);
    EXPECT_NE(last_failure().find(wanted[how]), std::string::npos) << last_failure();
    EXPECT_EQ(take_misuses().size(), 1u);
  }
  std::printf("%d kinds of misuse named\n", kMisuses);
}

TEST_F(Kernels, LaunchesThatCannotBeAreRefused) {
  uint32_t* memory = on_device<uint32_t>(8);
  EXPECT_EQ(launch(nullptr, 0, 32, race, memory), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(nullptr, 1, 0, race, memory), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(nullptr, 1, 1025, race, memory), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(reinterpret_cast<cudaStream_t>(64), 1, 32, race, memory), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  ok(cudaFree(memory));
}

}  // namespace
}  // namespace cuda_emulator
