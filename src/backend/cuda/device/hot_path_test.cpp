// Tests that the hot path takes all blocks of every rule and format, for all pairs of element types, weights with
// masters, rows of any length and unaligned memory, and that it refuses strided memory and operands out of range.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <stdexcept>

#include "backend/cpu/cpu_backend.h"
#include "cuda/step_cases.h"

#include "backend/cuda/device/prelude.inc"
#include "backend/kernels/step-inl.h"
#include "backend/cuda/device/tiles-inl.h"
#include "backend/cuda/device/real-inl.h"
#include "backend/cuda/device/packed-inl.h"
#include "backend/cuda/device/lane_codec-inl.h"
#include "backend/cuda/device/lane_dynamic8-inl.h"
#include "backend/cuda/device/slow-inl.h"
#include "backend/cuda/device/tile-inl.h"
#include "backend/cuda/device/weights-inl.h"
#include "backend/cuda/device/step-inl.h"
#include "backend/cuda/device/step_tiles-inl.h"

namespace {

using testing::DeviceCase;
using testing::Lie;
using testing::StepCase;

std::atomic<i64> hot_pairs, wide_pairs, careful_pairs;  // pairs of blocks

// The hot path with counters, which one lane of each warp increases.
template <class R, class C>
struct Counted : LaneBlocks<R, C> {
  using Base = LaneBlocks<R, C>;
  template <Round kRound, class Next>
  LT_FN bool step(const Tile& tile, const typename R::Args& args, const typename Base::Shared& shared, const Form& form,
                  const LaneAt& at, typename Base::Words& words, Next&& next, typename Base::Held* held = nullptr) {
    const bool done = Base::template step<kRound>(tile, args, shared, form, at, words, next, held);
    if (done && threadIdx.x % 32 == 0) ++hot_pairs, wide_pairs += form.wide, careful_pairs += tile.careful;
    return done;
  }
};

template <class R, class C>
__global__ void counted_kernel(const __grid_constant__ StepArguments a) {
  step_tiles<R, C, Counted<R, C>>(a);
}

// Returns the number of a rule. Rules that run for user-visible rules have names, too.
int rule_number(const char* name) {
  for (int rule = 0; rule < static_cast<int>(rules().size()); ++rule)
    if (std::strcmp(rule_info(rule).name, name) == 0) return rule;
  throw std::invalid_argument(name);
}

struct Tally {
  i64 steps = 0, pairs = 0, hot = 0, wide = 0, careful = 0, differing = 0;
};

// Steps on the CPU and on the device, with memory `shift` elements after an aligned address.
template <class R, class C>
void step_counted(const StepCase& start, size_t shift, Tally& tally, Lie lie = Lie::kContiguous) {
  StepCase wanted = start, got = start;
  StepItem item = wanted.item();
  cpu::make_backend("")->step({&item, 1}, 1, false, nullptr);
  DeviceCase there(got, shift, true, lie);
  item = there.item();
  kernels::Batch batch(cuda_kernels::kTileBlocks);
  batch.add_steps({&item, 1}, false);
  const testing::Shared table(batch.bytes());
  batch.write(table.get(), table.get());
  const kernels::Batch::Launch& launch = batch.launches()[0];
  const std::vector<std::byte> tables = kernels::codec_tables(start.codec);
  const testing::Shared of_codec(tables.data(), tables.size());
  const StepArguments a{batch.items(table.get(), launch),
                        reinterpret_cast<const i64*>(batch.starts(table.get(), launch)),
                        launch.count,
                        launch.units,
                        of_codec.get(),
                        nullptr,
                        nullptr,
                        reinterpret_cast<u64*>(batch.taken(table.get(), launch))};
  hot_pairs = wide_pairs = careful_pairs = 0;
  ASSERT_EQ(queue_kernel(counted_kernel<R, C>, a.tiles, cuda_kernels::kWarps, {nullptr, 2, 0}, a), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  EXPECT_EQ(*a.taken, static_cast<u64>(a.tiles)) << "tiles that were taken";
  there.fetch();
  ++tally.steps;
  for (i64 blocks = got.layout.blocks(kBlock); blocks > 0; blocks -= cuda_kernels::kTileBlocks)
    tally.pairs += (std::min<i64>(blocks, cuda_kernels::kTileBlocks) + 1) / 2;
  tally.hot += hot_pairs, tally.wide += wide_pairs, tally.careful += careful_pairs;
  tally.differing += differing_bytes(got, wanted);
}

// Returns a case with states as in training, rounded as by default.
StepCase usual_case(int rule, int codec, DType param, DType grad, i64 rows, i64 length, testing::Rng& rng) {
  StepCase c(rule, codec, param, grad, rows, length, rng);
  testing::make_usual(c, rng);
  const lowtide::RuleInput usual{.beta1 = 0.9, .beta2 = 0.999, .beta3 = 0.9999, .momentum = 0.9, .alpha = 0.99};
  c.stochastic = stochastic_states(rule, codec, RoundingMode::kAuto, usual);
  c.origin = {};
  return c;
}

// Rows of whole lanes are read 16 bytes at a time; other rows also take the hot path.
template <class R, class C>
void check_all(const char* name, int codec) {
  auto rng = testing::seeded("hot path", 90 + codec);
  const int rule = rule_number(name);
  Tally whole, any;
  for (int pair = 0; pair < 9; ++pair) {
    const auto param = static_cast<DType>(pair / 3), grad = static_cast<DType>(pair % 3);
    for (int master = 0; master < (pair < 3 ? 1 : 4); ++master) {
      StepCase c = usual_case(rule, codec, param, grad, 3, 4096 + 32, rng);
      if (master) c.set_master(master, rng);
      step_counted<R, C>(c, 0, whole);
      StepCase other = usual_case(rule, codec, param, grad, 5, 270, rng);
      if (master) other.set_master(master, rng);
      step_counted<R, C>(other, static_cast<size_t>(pair % 2), any);
    }
  }
  EXPECT_EQ(whole.hot, whole.pairs) << name << ": pairs of blocks went the slow path";
  EXPECT_EQ(whole.wide, whole.pairs) << name << ": pairs of blocks were read piece by piece";
  EXPECT_EQ(any.hot, any.pairs) << name << ": pairs of blocks went the slow path";
  EXPECT_EQ(whole.differing + any.differing, 0) << name;
  std::printf("%s %s: %lld steps, %lld of %lld pairs of blocks hot, of rows of any length %lld of %lld\n", name,
              C::kName, static_cast<long long>(whole.steps + any.steps), static_cast<long long>(whole.hot),
              static_cast<long long>(whole.pairs), static_cast<long long>(any.hot), static_cast<long long>(any.pairs));
}

TEST(CudaHotPath, TakesAdamWInEveryFormat) {
  check_all<AdamW, Fp32>("adamw", 0);
  check_all<AdamW, Bf16>("adamw", 1);
  check_all<AdamW, Dynamic8>("adamw", 2);
  check_all<AdamW, Float8>("adamw", 3);
  check_all<AdamW, Dynamic4>("adamw", 4);
}

TEST(CudaHotPath, TakesOtherRules) {
  check_all<Lion, Dynamic8>("lion", 2);
  check_all<Sgd, Dynamic8>("sgd", 2);
  check_all<SgdPlain, Fp32>("sgd_plain", 0);
  check_all<AdamWAmsgrad, Dynamic8>("adamw_amsgrad", 2);
  check_all<AdamWNesterov, Bf16>("adamw_nesterov", 1);
  check_all<Adagrad, Dynamic8>("adagrad", 2);
  check_all<Rmsprop, Bf16>("rmsprop", 1);
  check_all<Ademamix, Dynamic4>("ademamix", 4);
  check_all<Lamb, Dynamic4>("lamb", 4);
  check_all<Lars, Float8>("lars", 3);
}

// Steps from zero states with gradients of one size.
template <class R, class C>
Tally step_on(const char* name, int codec, double size) {
  auto rng = testing::seeded("small gradients", 97);
  StepCase c = usual_case(rule_number(name), codec, DType::kBF16, DType::kBF16, 3, 256 * 40, rng);
  for (int k = 0; k < R::kStates; ++k) {
    std::fill(c.scales[k].begin(), c.scales[k].end(), 0.f);
    if (c.scales[k].empty()) std::fill(c.codes[k].begin(), c.codes[k].end(), std::byte{0});
  }
  for (i64 i = 0; i < c.layout.numel; ++i) testing::put(c.grad, c.grad_dtype, i, size * (2 * rng.uniform() - 1));
  Tally tally;
  step_counted<R, C>(c, 0, tally);
  EXPECT_EQ(tally.differing, 0) << name << " " << size;
  EXPECT_EQ(tally.hot, tally.pairs) << name << ": pairs of blocks went the slow path, with gradients of " << size;
  return tally;
}

TEST(CudaHotPath, TakesSmallGradientsCarefully) {
  for (const double size : {1e-12, 1e-30, 1e-40}) {
    EXPECT_GT((step_on<AdamW, Dynamic8>("adamw", 2, size).careful), 0);
    EXPECT_GT((step_on<AdamW, Fp32>("adamw", 0, size).careful), 0);
    EXPECT_GT((step_on<AdamW, Bf16>("adamw", 1, size).careful), 0);
    EXPECT_GT((step_on<AdamW, Float8>("adamw", 3, size).careful), 0);
    step_on<Lion, Dynamic8>("lion", 2, size);
    step_on<Adagrad, Dynamic8>("adagrad", 2, size);
  }
  for (const double size : {1e-3, 0.}) EXPECT_EQ((step_on<AdamW, Dynamic8>("adamw", 2, size).careful), 0);
}

TEST(CudaHotPath, RefusesWhatItCannotHave) {
  auto rng = testing::seeded("refusals of the hot path", 95);
  const auto hot_of = [&](auto&& spoil, Lie lie = Lie::kContiguous) {
    StepCase c = usual_case(rule_number("adamw"), 2, DType::kBF16, DType::kBF16, 4, 512, rng);
    spoil(c);
    Tally tally;
    step_counted<AdamW, Dynamic8>(c, 0, tally, lie);
    EXPECT_EQ(tally.differing, 0);
    return tally.hot;
  };
  EXPECT_EQ(hot_of([](StepCase&) {}), 4);
  EXPECT_EQ(hot_of([](StepCase&) {}, Lie::kGaps), 0);
  EXPECT_EQ(hot_of([](StepCase& c) { c.lr = 0x1p-40, c.set_step(2); }), 0);
  EXPECT_EQ(hot_of([](StepCase& c) { c.scales[1].assign(c.scales[1].size(), 0x1p100f); }), 0);
  // A block out of range takes its neighbour off the hot path, too.
  EXPECT_EQ(hot_of([](StepCase& c) { c.scales[1][3] = 0x1p100f; }), 3);
}

}  // namespace
}  // namespace lowtide::LT_CUDA_NAMESPACE
