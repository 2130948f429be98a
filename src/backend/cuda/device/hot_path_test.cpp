// The hot path takes what it is for: all blocks of the default AdamW's items, whose second moments are rounded by
// chance, in every format with a hot path; and refuses, item by item, what it cannot have.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "backend/kernels/batch.h"
#include "support/step_case.h"

#include "backend/cuda/device/prelude.inc"
#include "backend/kernels/step-inl.h"
#include "backend/cuda/device/tiles-inl.h"
#include "backend/cuda/device/real-inl.h"
#include "backend/cuda/device/packed-inl.h"
#include "backend/cuda/device/lane_codec-inl.h"
#include "backend/cuda/device/step-inl.h"

namespace {

using testing::StepCase;

std::atomic<i64> hot_pairs;  // of blocks

// The hot path, counted: by one lane of each warp.
template <class R, class C, class P, bool kRandom>
struct Counted : HotBlocks<R, C, P, P, kRandom> {
  using Hot = HotBlocks<R, C, P, P, kRandom>;
  template <class... Arguments>
  LT_FN bool step(const Arguments&... arguments) {
    const bool done = Hot::step(arguments...);
    if (done && threadIdx.x % 32 == 0) ++hot_pairs;
    return done;
  }
};

template <class R, class C, class P, bool kRandom>
__global__ void counted_kernel(const __grid_constant__ StepArguments a) {
  step_tiles<R, C, Counted<R, C, P, kRandom>>(a);
}

constexpr int kRule = 1;  // adamw
template <class R>
typename R::Args args_of(const StepCase& c) {
  typename R::Args args;
  std::memcpy(&args, c.args, sizeof args);
  return args;
}

StepCase usual_case(int codec, DType type, i64 rows, i64 length, testing::Rng& rng) {
  StepCase c(kRule, codec, type, type, rows, length, rng);
  for (int k = 0; k < 2; ++k) {
    for (float& scale : c.scales[k]) scale = static_cast<float>(std::ldexp(1 + rng.uniform(), -6));
    if (c.scales[k].empty())
      for (i64 i = 0; i < c.layout.numel; ++i) {
        const double value = rng.over_binades(-30, 0);
        testing::put(c.codes[k], codec == 0 ? DType::kF32 : DType::kBF16, i, k ? std::fabs(value) : value);
      }
  }
  return c;
}

// Parts of a case, one behind the other in memory that kernels see.
template <class Fn>
void each_part(StepCase& c, Fn&& fn) {
  fn(c.param.data(), c.param.size());
  fn(c.grad.data(), c.grad.size());
  for (int k = 0; k < 2; ++k) {
    fn(c.codes[k].data(), c.codes[k].size());
    fn(reinterpret_cast<std::byte*>(c.scales[k].data()), 4 * c.scales[k].size());
  }
}

// A step as the host code launches it; returns the pairs of blocks that the hot path did.
template <class C, class P, bool kRandom>
i64 step_counted(StepCase& c, kernels::Batch::Launch& launch) {
  size_t at[7] = {}, n = 0;
  each_part(c, [&](std::byte*, size_t bytes) { at[n + 1] = at[n] + (bytes + 255) / 256 * 256, ++n; });
  std::byte* memory = nullptr;
  EXPECT_EQ(cudaMallocManaged(reinterpret_cast<void**>(&memory), at[6] + 65536), cudaSuccess);
  n = 0;
  each_part(
      c, [&](std::byte* from, size_t bytes) { bytes ? void(std::memcpy(memory + at[n], from, bytes)) : void(), ++n; });
  StepItem item = c.item();
  item.param = memory + at[0], item.grad = memory + at[1];
  for (int k = 0; k < 2; ++k) {
    item.codes[k] = memory + at[2 + 2 * k];
    if (item.scales[k]) item.scales[k] = reinterpret_cast<float*>(memory + at[3 + 2 * k]);
  }
  kernels::Batch batch({.by_pair = true, .unit_blocks = cuda_kernels::kTileBlocks});
  batch.add_steps({&item, 1}, false);
  batch.write(memory + at[6], memory + at[6]);
  launch = batch.launches()[0];
  const std::vector<std::byte> tables = kernels::codec_tables(c.codec);
  std::byte* const of_codec = memory + at[6] + (batch.bytes() + 63) / 64 * 64;
  EXPECT_LE(batch.bytes() + 64 + tables.size(), 65536u);
  if (!tables.empty()) std::memcpy(of_codec, tables.data(), tables.size());
  const StepArguments a{batch.items(memory + at[6], launch),
                        reinterpret_cast<const i64*>(batch.starts(memory + at[6], launch)),
                        launch.count,
                        launch.units,
                        of_codec,
                        nullptr};
  hot_pairs = 0;
  EXPECT_EQ(queue_kernel(counted_kernel<AdamW, C, P, kRandom>, a.tiles, cuda_kernels::kWarps, {nullptr, 2}, a),
            cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  n = 0;
  each_part(c,
            [&](std::byte* to, size_t bytes) { bytes ? void(std::memcpy(to, memory + at[n], bytes)) : void(), ++n; });
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  return hot_pairs;
}

template <class C, class P>
void check_default(int codec, DType type, RoundingMode mode, u32 wanted_states) {
  static_assert(kHasHotPath<AdamW> && kHasLaneCodec<C>);
  auto rng = testing::seeded("hot path", 90 + codec);
  const auto cpu = cpu::make_backend("");
  const lowtide::RuleInput defaults{
      .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 1e-2, .t = 2};
  const u32 stochastic = stochastic_states(kRule, codec, mode, long_averages(kRule, defaults));
  ASSERT_EQ(stochastic, wanted_states);
  StepCase start = usual_case(codec, type, 5, 4096, rng);
  rules()[kRule].make_args(defaults, start.args);
  start.stochastic = stochastic;
  start.origin = {.first_row = (i64{1} << 32) / 4096 - 1, .row_stride = 4096};  // 2^32 is within a tile
  StepCase wanted = start, got = start;
  StepItem item = wanted.item();
  cpu->step({&item, 1}, 1, false, nullptr);
  kernels::Batch::Launch launch{};
  i64 pairs = 0;
  if constexpr (kHasRandom<C>)
    if (stochastic) pairs = step_counted<C, P, true>(got, launch);
  if constexpr (kHasNearest<C>)
    if (!stochastic) pairs = step_counted<C, P, false>(got, launch);
  EXPECT_EQ(launch.stochastic, stochastic != 0) << "the launch takes the other kernel";
  EXPECT_EQ(pairs, 5 * 4096 / 256 / 2) << "pairs of blocks went the slow path";
  const i64 differing = differing_bytes(got, wanted);
  EXPECT_EQ(differing, 0);
  std::printf("%s: %lld pairs of blocks hot, states %u stochastically, %lld bytes, %lld differ\n", C::kName,
              static_cast<long long>(pairs), stochastic, static_cast<long long>(got.bytes()),
              static_cast<long long>(differing));
}

TEST(CudaHotPath, TakesTheDefaultAdamWs) {
  check_default<Dynamic8, bf16>(2, DType::kBF16, RoundingMode::kAuto, 0b10);
  check_default<Dynamic8, float>(2, DType::kF32, RoundingMode::kAuto, 0b10);
  check_default<Bf16, bf16>(1, DType::kBF16, RoundingMode::kAuto, 0b10);
  check_default<Float8, bf16>(3, DType::kBF16, RoundingMode::kAuto, 0b11);
}

TEST(CudaHotPath, TakesOtherRoundings) {
  check_default<Dynamic8, bf16>(2, DType::kBF16, RoundingMode::kNearest, 0);
  check_default<Dynamic8, bf16>(2, DType::kBF16, RoundingMode::kStochastic, 0b11);
  check_default<Fp32, float>(0, DType::kF32, RoundingMode::kStochastic, 0);
}

TEST(CudaHotPath, RefusesWhatItCannotHave) {
  auto rng = testing::seeded("refusals of the hot path", 95);
  StepCase c = usual_case(2, DType::kBF16, 4, 512, rng);
  const AdamW::Args args = args_of<AdamW>(c);
  DeviceItem good{};
  alignas(256) static std::byte memory[256];
  good.param = good.grad = {memory, nullptr, 0, 1};
  good.row_length = 512, good.row_stride = 512;
  for (int k = 0; k < 2; ++k) good.codes[k] = memory;
  const auto stochastic = [&](const DeviceItem& item) {
    return HotBlocks<AdamW, Dynamic8, bf16, bf16, true>::takes(item, args);
  };
  const auto to_nearest = [&](const DeviceItem& item) {
    return HotBlocks<AdamW, Dynamic8, bf16, bf16, false>::takes(item, args);
  };
  const auto float8 = [&](const DeviceItem& item) {
    return HotBlocks<AdamW, Float8, bf16, bf16, true>::takes(item, args);
  };
  for (u32 states = 0; states < 4; ++states) {
    DeviceItem item = good;
    item.stochastic = states;
    EXPECT_TRUE(stochastic(item));
    EXPECT_EQ(to_nearest(item), states == 0);
    EXPECT_EQ(float8(item), states == 3);
  }
  int refused = 0;
  const auto refuse = [&](auto&& spoil) {
    DeviceItem item = good;
    item.stochastic = 3;
    spoil(item);
    EXPECT_FALSE(stochastic(item) || float8(item)) << refused;
    ++refused;
  };
  refuse([](DeviceItem& i) { i.first_index = 1; });
  refuse([](DeviceItem& i) { i.row_stride = 520; });
  refuse([](DeviceItem& i) { i.param.dim_count = 1; });
  refuse([](DeviceItem& i) { i.grad.dtype = 0; });
  refuse([](DeviceItem& i) { i.grad.data = memory + 2; });
  refuse([](DeviceItem& i) { i.codes[1] = memory + 8; });
  refuse([](DeviceItem& i) { i.origin = 8; });
  refuse([](DeviceItem& i) { i.write_offset = 8; });
  std::printf("%d spoiled items refused\n", refused);
}

}  // namespace
}  // namespace lowtide::LT_CUDA_NAMESPACE
