// Tests that step kernels, compiled for the emulated device, give the bits of a step on the CPU: for every rule, codec
// and pair of element types, both ways of rounding, whole and short blocks and rows, shards, misaligned memory, strided
// and transposed parameters and gradients, states written elsewhere, and stopped steps.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "backend/cpu/cpu_backend.h"
#include "cuda/step_cases.h"
#include "support/test.h"

namespace lowtide {
namespace {

using namespace lowtide::testing;

std::vector<StepCase> many_cases(int rule, int codec, int pair, Variant variant, Rng& rng) {
  const std::pair<int64_t, int64_t> shapes[] = {{0, 5},
                                                {3, 0},
                                                {1, 1},
                                                {2, 256},
                                                {3, 512},
                                                {1, 256 * 70 + 77},
                                                {5, 400},
                                                {9, 16},
                                                {1, 256 * 33},
                                                {33, 24},
                                                {6, 257},
                                                {1, rng.between(1, 255)},
                                                {rng.between(2, 40), rng.between(1, 255)},
                                                {rng.between(2, 5), rng.between(257, 1200)}};
  return make_cases(shapes, rule, codec, pair, variant, rng);
}

TEST(CudaSteps, GiveTheBitsOfTheCpu) {
  auto rng = testing::seeded("steps of CUDA kernels", 70);
  const auto cpu = cpu::make_backend("");
  int64_t grid = 0, comparisons = 0, bytes = 0, differing = 0, still = 0, strided = 0, stochastic = 0, masters = 0;
  for (int rule = 0; rule < static_cast<int>(rules().size()); ++rule)
    for (int codec = 0; codec < static_cast<int>(codecs().size()); ++codec)
      for (int pair = 0; pair < 9; ++pair)
        for (int n = 0; n < kVariants; ++n) {
          if (!in_share(grid++)) continue;
          const auto variant = static_cast<Variant>(n);
          const std::vector<StepCase> start = many_cases(rule, codec, pair, variant, rng);
          std::vector<StepCase> wanted = start, got = start;
          step_all(*cpu, wanted, 1);
          std::vector<DeviceCase> on_device = on_the_device(got, variant, rng);
          for (size_t i = 0; i < got.size(); ++i) {
            stochastic += got[i].stochastic != 0, masters += got[i].master != 0;
            strided += !(on_device[i].param.layout->contiguous && on_device[i].grad.layout->contiguous);
          }
          std::vector<StepItem> items;
          for (DeviceCase& c : on_device) items.push_back(c.item());
          step_on_device(items, {rule, codec});
          for (DeviceCase& c : on_device) c.fetch();
          for (size_t i = 0; i < got.size(); ++i, ++comparisons) {
            const int64_t bad = differing_bytes(got[i], wanted[i]);
            if (bad)
              ADD_FAILURE() << rule_info(rule).name << " " << codec_info(codec).name << " pair " << pair << " variant "
                            << variant << " case " << i << ": " << bad << " bytes; "
                            << testing::same_bits(got[i].param.data(), wanted[i].param.data(), got[i].param_dtype,
                                                  got[i].layout.numel);
            differing += bad, bytes += got[i].bytes();
            still += got[i].layout.numel && differing_bytes(got[i], start[i]) == 0;
          }
          if (differing) return;
        }
  std::printf(
      "%lld parameters stepped (%lld not contiguous, %lld with states rounded stochastically, %lld with masters), %lld "
      "bytes compared, %lld differ, %lld were left as they were\n",
      static_cast<long long>(comparisons), static_cast<long long>(strided), static_cast<long long>(stochastic),
      static_cast<long long>(masters), static_cast<long long>(bytes), static_cast<long long>(differing),
      static_cast<long long>(still));
}

TEST(CudaSteps, MakeTheBallotsOfTheCpu) {
  auto rng = testing::seeded("ballots of CUDA kernels", 73);
  const auto cpu = cpu::make_backend("");
  int64_t ballots = 0, bytes = 0;
  for (int rule = 0; rule < static_cast<int>(rules().size()); ++rule)
    for (int codec = 0; codec < static_cast<int>(codecs().size()); ++codec) {
      if (!in_share(rule, codec, std::ssize(codecs()))) continue;
      for (const StepCase& start : many_cases(rule, codec, static_cast<int>(rng.below(9)), kAny, rng)) {
        ASSERT_EQ(differing_ballot_bytes(*cpu, start, rng), 0)
            << rule_info(rule).name << " " << codec_info(codec).name << " of " << start.layout.numel;
        ++ballots, bytes += sign_bytes(start.layout.numel) + start.bytes();
      }
    }
  EXPECT_GE(ballots, std::ssize(rules()));
  std::printf("%lld ballots, %lld bytes compared, 0 differ\n", static_cast<long long>(ballots),
              static_cast<long long>(bytes));
}

// Takes an AdamW step of a typical parameter, and returns the number of bytes that changed.
int64_t changed_by(const uint32_t* guard, const cuda_kernels::ReplayState* replay) {
  Rng rng(71);
  StepCase start(1, 2, DType::kBF16, DType::kBF16, 3, 512, rng), got = start;
  make_usual(got, rng);
  start = got;
  DeviceCase on_device(got, 0, false);
  StepItem item = on_device.item();
  step_on_device({&item, 1}, {1, 2, false, guard, replay});
  on_device.fetch();
  return differing_bytes(got, start);
}

TEST(CudaSteps, AreStoppedByGuardsAndUnpreparedReplays) {
  const Shared memory(64);
  auto* const guard = reinterpret_cast<uint32_t*>(memory.get());
  auto* const replay = reinterpret_cast<cuda_kernels::ReplayState*>(memory.get() + 16);
  *guard = kernels::kNoItem;
  EXPECT_GT(changed_by(guard, nullptr), 0);
  *guard = 3;
  EXPECT_EQ(changed_by(guard, nullptr), 0);
  const auto finish = [&] {
    ASSERT_EQ(cuda_kernels::finish_replay(replay, {nullptr, 2, 0}), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  };
  *replay = {1, 0, 0};
  EXPECT_GT(changed_by(nullptr, replay), 0);
  finish();
  EXPECT_EQ(replay->done, 1u);
  EXPECT_EQ(replay->missed, 0u);
  EXPECT_EQ(changed_by(nullptr, replay), 0);
  finish();
  EXPECT_EQ(replay->missed, 1u);
}

// Each element in turn has a gradient that is not finite or too large.
TEST(CudaSearch, FindsTheFirstGradientThatIsNotFinite) {
  Rng rng(72);
  int64_t searches = 0;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
    for (int trial = 0; trial < 40; ++trial) {
      std::vector<StepCase> cases;
      for (int i = 0; i < 5; ++i) cases.emplace_back(2, 1, dtype, dtype, rng.between(1, 3), rng.between(1, 9000), rng);
      const int bad = static_cast<int>(rng.between(-1, 4));
      for (int i = bad; i >= 0 && i < 5; i += 2) {
        StepCase& c = cases[static_cast<size_t>(i)];
        // Infinities of both signs and a NaN, whose bits after the sign are 0x7f8..., 0x7c... or all ones.
        const uint32_t infinity = dtype == DType::kF32 ? 0x7f800000u : dtype == DType::kBF16 ? 0x7f80u : 0x7c00u;
        const uint32_t sign = dtype == DType::kF32 ? 0x80000000u : 0x8000u;
        const uint32_t what[] = {infinity, infinity | sign, sign - 1};
        const size_t bytes = static_cast<size_t>(dtype_bytes(dtype));
        std::memcpy(c.grad.data() + bytes * static_cast<size_t>(rng.below(c.layout.numel)), &what[rng.below(3)], bytes);
      }
      std::vector<DeviceCase> on_device;
      Batch batch;
      batch.begin_launch(0, 0);
      for (size_t i = 0; i < cases.size(); ++i) {
        on_device.emplace_back(cases[i], rng.below(4), false);
        batch.add(on_device.back().item(), static_cast<int64_t>(i));
      }
      const Shared table(batch.bytes()), first(8);
      batch.write(table.get(), table.get());
      auto* const items = reinterpret_cast<DeviceItem*>(table.get());
      auto* const starts = reinterpret_cast<int64_t*>(table.get() + cases.size() * sizeof(DeviceItem));
      int64_t tiles = 0;
      for (size_t i = 0; i < cases.size(); ++i) {
        starts[i] = tiles;
        tiles += cuda_kernels::tiles_of(items[i].blocks);
      }
      auto* const found = reinterpret_cast<uint32_t*>(first.get());
      *found = kernels::kNoItem;
      ASSERT_EQ(cuda_kernels::first_nonfinite(items, starts, 5, tiles, found, {nullptr, 2, 0}), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
      EXPECT_EQ(*found, bad < 0 ? kernels::kNoItem : static_cast<uint32_t>(bad)) << "trial " << trial;
      ++searches;
    }
  std::printf("%lld searches\n", static_cast<long long>(searches));
}

}  // namespace
}  // namespace lowtide
