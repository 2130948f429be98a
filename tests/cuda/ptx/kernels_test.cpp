// The shipped kernels' PTX gives the bits of a step on the CPU, for each value that the manual allows approximate
// instructions: every rule, codec and pair of element types.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/device/launch.h"
#include "backend/kernels/items.h"
#include "backend/kernels/sums.h"
#include "core/exact_sum.h"
#include "cuda/step_cases.h"
#include "cuda_emulator.h"
#include "lowtide/optimizer.h"
#include "runtime.h"
#include "support/test.h"
#include "support/tested_rules.h"

namespace lowtide {
namespace {

using namespace lowtide::testing;

constexpr ptx::Choice kChoices[] = {ptx::Choice::kLowest, ptx::Choice::kHighest, ptx::Choice::kNearest,
                                    ptx::Choice::kRandom};
const char* name_of(ptx::Choice choice) {
  const char* names[] = {"lowest", "highest", "nearest", "random"};
  return names[static_cast<size_t>(choice)];
}

// Rows of many blocks, of one and of less than one, tails, and parameters without elements.
std::vector<StepCase> small_cases(int rule, int codec, int pair, Rng& rng, Variant variant = kUsual) {
  const std::pair<int64_t, int64_t> shapes[] = {{1, 256 * 33 + 77},
                                                {2, 512},
                                                {0, 5},
                                                {1, 1},
                                                {9, 16},
                                                {3, 400},
                                                {6, 24},
                                                {2, 257},
                                                {rng.between(2, 9), rng.between(1, 255)}};
  return make_cases(shapes, rule, codec, pair, variant, rng);
}

struct Tally {
  int64_t launches = 0, parameters = 0, bytes = 0, differing = 0;
};

void step_and_compare(Backend& cpu, int rule, int codec, int pair, Variant variant, ptx::Choice choice, Rng& rng,
                      Tally& tally) {
  const std::vector<StepCase> start = small_cases(rule, codec, pair, rng, variant);
  std::vector<StepCase> wanted = start, got = start;
  step_all(cpu, wanted, 1);
  std::vector<DeviceCase> on_device = on_the_device(got, variant, rng);
  std::vector<StepItem> items;
  for (DeviceCase& c : on_device) items.push_back(c.item());
  ptx::policy().choice = choice;
  step_on_device(items, {rule, codec});
  for (DeviceCase& c : on_device) c.fetch();
  ++tally.launches;
  for (size_t i = 0; i < got.size(); ++i) {
    const int64_t bad = differing_bytes(got[i], wanted[i]);
    if (bad)
      ADD_FAILURE() << rule_info(rule).name << " " << codec_info(codec).name << " pair " << pair << " variant "
                    << variant << " choice " << name_of(choice) << " case " << i << ": " << bad << " bytes; "
                    << same_bits(got[i].param.data(), wanted[i].param.data(), got[i].param_dtype, got[i].layout.numel);
    ++tally.parameters, tally.bytes += got[i].bytes(), tally.differing += bad;
  }
}

// The choices matter where a hot path may run; elsewhere one choice for each variant, which takes turns.
TEST(PtxSteps, GiveTheBitsOfTheCpuForEveryChoice) {
  auto rng = testing::seeded("steps of PTX", 170);
  const auto cpu = cpu::make_backend("");
  Tally tally;
  int turn = 0;
  int64_t grid = 0;
  for (const int rule : testing::tested_rules())
    for (int codec = 0; codec < static_cast<int>(codecs().size()); ++codec)
      for (int pair = 0; pair < 9; ++pair) {
        for (int n = 0; n < kVariants; ++n) {
          const auto variant = static_cast<Variant>(n);
          // Every kernel runs in any share.
          if (variant != kUsual && !in_share(grid++)) continue;
          const bool every =
              rule < 5 && (pair / 3 == pair % 3 || pair == 1) && (variant == kUsual || variant == kStochastic);
          for (int i = 0; i < (every ? 4 : 1); ++i)
            step_and_compare(*cpu, rule, codec, pair, variant, kChoices[turn++ % 4], rng, tally);
        }
        if (tally.differing || HasFailure()) return;
      }
  const ptx::Work work = ptx::work_done();
  std::printf(
      "%lld launches, %lld parameters, %lld bytes compared, %lld differ; %.1f million instructions of warps, %.1f of "
      "threads\n",
      static_cast<long long>(tally.launches), static_cast<long long>(tally.parameters),
      static_cast<long long>(tally.bytes), static_cast<long long>(tally.differing),
      static_cast<double>(work.warp_instructions) * 1e-6, static_cast<double>(work.thread_instructions) * 1e-6);
}

TEST(PtxSteps, MakeTheBallotsOfTheCpu) {
  auto rng = testing::seeded("ballots of PTX", 173);
  const auto cpu = cpu::make_backend("");
  int turn = 0;
  for (const int rule : testing::tested_rules())
    for (int codec = 0; codec < static_cast<int>(codecs().size()); ++codec)
      for (const StepCase& start : small_cases(rule, codec, static_cast<int>(rng.below(9)), rng)) {
        ptx::policy().choice = kChoices[turn++ % 4];
        ASSERT_EQ(differing_ballot_bytes(*cpu, start, rng), 0)
            << rule_info(rule).name << " " << codec_info(codec).name << " of " << start.layout.numel;
      }
  std::printf("%d ballots, 0 bytes differ\n", turn);
}

// The last bit of a number of this size and type.
double ulp(double value, DType dtype) {
  const int digits = dtype == DType::kF32 ? 23 : dtype == DType::kBF16 ? 7 : 10;
  return std::ldexp(1., std::max(value == 0 ? -126 : std::ilogb(value), dtype == DType::kF16 ? -14 : -126) - digits);
}

// The weights, with what their masters have beside them.
std::vector<float> weights_of(const StepCase& c) {
  const auto n = static_cast<size_t>(c.layout.numel);
  std::vector<float> out(n);
  if (c.param_dtype != DType::kF32)
    join_master(master_info(c.master).name, c.param_dtype, c.param.data(), c.residual.data(), c.layout.numel,
                out.data());
  else
    std::memcpy(out.data(), c.param.data(), n * sizeof(float));
  return out;
}

// The last bit of a weight of this size with its residual, which adds 8 or 16 to the type's own, and no more than a
// float32 has.
double ulp(double value, const StepCase& c) {
  return std::max(std::ldexp(ulp(value, c.param_dtype), -master_info(c.master).residual_bits), ulp(value, DType::kF32));
}

// Where element i of state k stands among all codes of its format, from the least value to the largest.
int place_of_code(const StepCase& c, int k, size_t i) {
  const int bits = format_of(c.rule, c.codec, k).code_bits;
  const bool is_signed = (rule_info(c.rule).signed_mask >> k) & 1;
  const int code =
      bits == 8 ? static_cast<int>(c.codes[k][i]) : static_cast<int>(c.codes[k][i / 2]) >> (4 * (i % 2)) & 15;
  const bool has_sign_bit = is_signed && std::strcmp(codec_info(c.codec).name, "float8") == 0;
  return has_sign_bit && code >= 128 ? 128 - code : code;
}

// Bounds of docs/project/cuda.md, and for weights with masters those of the sum of weight and residual. Gradients have
// the signs of the moments, so that sums of moments' terms are as large as their terms: a moment is off by 3 * 2^-24 of
// itself. A step is off by 14 * 2^-24 for equal moments, 3 more of the first moment, 1.5 of the second's root, and with
// decay and subtraction contracted by 3 * 2^-24 of it and of the parameter.
TEST(PtxSteps, FastOnesStayWithinTheirBounds) {
  auto rng = testing::seeded("fast steps of PTX", 174);
  const auto cpu = cpu::make_backend("");
  int64_t values = 0, differing = 0, codes_apart = 0;
  double worst = 0;
  std::vector<int> have_fast = {0, 1, 5, 6};  // Adam, AdamW, and both with AMSGrad
  std::erase_if(have_fast, [](int rule) { return !testing::is_tested(rule); });
  for (const int rule : have_fast)
    for (int codec = 0; codec < static_cast<int>(codecs().size()); ++codec)
      for (const int pair : {0, 1, 4, 8})
        for (int turn = 0; turn < 8; ++turn) {
          const ptx::Choice choice = kChoices[turn % 4];
          const bool usual = turn < 4;  // else misaligned or strided, and states over many binades
          const int64_t rows = turn % 2 ? 1 : 3, length = turn % 2 ? 13056 + 77 : 4096 + 256;  // the first with a tail
          StepCase start(rule, codec, static_cast<DType>(pair / 3), static_cast<DType>(pair % 3), rows, length, rng);
          if (usual) make_usual(start, rng);
          const bool* const needs = codec_info(codec).needs_random;
          start.stochastic = (turn % 2 || needs[1] ? 1u : 0u) | (turn < 6 || needs[0] ? 6u : 0u);
          start.origin = {};
          if (pair != 8) start.lr = 0.01;                      // the range of fp16 wants smaller ones
          if (rule == 0 || rule == 5) start.weight_decay = 0;  // it would stand in the gradient, of any sign
          start.set_step(20);
          if (start.param_dtype != DType::kF32) start.set_master((turn + codec) % 4, rng);
          const auto n = static_cast<size_t>(start.layout.numel);
          std::vector<float> moments(n);
          cpu->decode({.codec = codec,
                       .rows = rows,
                       .row_length = start.layout.row_length,
                       .codes = start.codes[0].data(),
                       .scales = start.scales[0].data(),
                       .values = moments.data()},
                      nullptr);
          for (int64_t at = 0; at < start.layout.numel; ++at)
            put(start.grad, start.grad_dtype, at,
                std::copysign(element(start.grad.data(), start.grad_dtype, at), moments[static_cast<size_t>(at)]));
          StepCase wanted = start, got = start;
          StepItem item = wanted.item();
          cpu->step({&item, 1}, 1, false, nullptr);
          const Lie lie = turn == 5 || turn == 6 ? Lie::kEveryThird : Lie::kContiguous;
          DeviceCase there(got, usual ? 0 : 1, false, lie, lie);
          item = there.item();
          ptx::policy().choice = choice;
          step_on_device({&item, 1}, {rule, codec, true});
          there.fetch();
          differing += differing_bytes(got, wanted);
          const std::vector<float> weights[] = {weights_of(start), weights_of(wanted), weights_of(got)};
          for (size_t i = 0; i < n; ++i, ++values) {
            const auto at = static_cast<int64_t>(i);
            const double before = weights[0][i], exact = weights[1][i], fast = weights[2][i];
            const double step = std::fabs(before - exact) + start.lr * start.weight_decay * std::fabs(before);
            const double bound = (21.5 * step + 3 * std::fabs(before)) * 0x1p-24 + ulp(exact, start);
            if (pair == 0) worst = std::max(worst, std::fabs(fast - exact) / bound);  // others' is their rounding
            ASSERT_LE(std::fabs(fast - exact), bound) << rule_info(rule).name << " " << codec_info(codec).name
                                                      << " pair " << pair << " master " << start.master << " " << i;
            for (int k = 0; k < rule_info(rule).states; ++k) {
              if (codec_info(codec).scaled) {
                const auto scales = static_cast<size_t>(format_of(rule, codec, k).scales);
                const size_t scale = i * scales / kBlockElements;
                // Smaller scales than normal numbers are flushed.
                if (wanted.scales[k][scale] < 0x1p-100f) continue;
                const int apart = std::abs(place_of_code(got, k, i) - place_of_code(wanted, k, i));
                ASSERT_LE(apart, 1) << codec_info(codec).name << " code " << i << " of state " << k;
                codes_apart += apart;
              } else {
                const DType as = codec ? DType::kBF16 : DType::kF32;
                const double moment = element(wanted.codes[k].data(), as, at);
                ASSERT_LE(std::fabs(element(got.codes[k].data(), as, at) - moment),
                          3.01 * 0x1p-24 * std::fabs(moment) + (codec ? ulp(moment, as) : 0) + 0x1p-126);
              }
            }
          }
        }
  EXPECT_GT(differing, 0) << "fast steps were exact: were they run?";
  std::printf("%lld values, at most %.2f of the bound; %lld codes apart by one\n", static_cast<long long>(values),
              worst, static_cast<long long>(codes_apart));
}

// The blocks of an item are put far behind the beginning of its parameter, of which the memory has these only.
constexpr int64_t kFarRow = (int64_t{5} << 32) + 3;
Layout far_layout(int64_t length) {
  const int64_t sizes[] = {kFarRow + 100, length};
  return Layout::make(sizes, {});
}
void make_far(StepItem& item, const Layout& whole) {
  const int64_t rows = item.param_layout->rows, length = item.param_layout->row_length;
  const int64_t per_row = blocks_per_row(length, kBlockElements);
  item.first_block = kFarRow * per_row, item.blocks = rows * per_row;
  const auto begin = [&](const void* data, DType dtype) {
    return reinterpret_cast<uintptr_t>(data) - static_cast<uintptr_t>(dtype_bytes(dtype) * kFarRow * length);
  };
  item.param = reinterpret_cast<std::byte*>(begin(item.param, item.param_dtype));
  item.grad = reinterpret_cast<const std::byte*>(begin(item.grad, item.grad_dtype));
  item.param_layout = item.grad_layout = &whole;
}

TEST(PtxSteps, TakeBlocksBeyondTheRangeOf32Bits) {
  auto rng = testing::seeded("far blocks of PTX", 175);
  const auto cpu = cpu::make_backend("");
  for (const int rule : testing::tested_rules())
    for (const int64_t length : {256, 300}) {
      StepCase start(rule, rule % 6, DType::kBF16, DType::kBF16, 40, length, rng);
      make_usual(start, rng);
      start.origin = {};
      const Layout whole = far_layout(length);
      StepCase wanted = start, got = start;
      StepItem item = wanted.item();
      make_far(item, whole);
      cpu->step({&item, 1}, 1, false, nullptr);
      DeviceCase there(got, 0, false);
      item = there.item();
      make_far(item, whole);
      step_on_device({&item, 1}, {rule, rule % 6});
      there.fetch();
      ASSERT_EQ(differing_bytes(got, wanted), 0) << rule_info(rule).name;
    }
}

// The sums of norms of such blocks.
TEST(PtxSteps, GiveTheNormsOfBlocksBeyondTheRangeOf32Bits) {
  auto rng = testing::seeded("norms of far blocks of PTX", 176);
  int rule = 0;
  while (std::strcmp(rule_info(rule).name, "lamb") != 0) ++rule;
  StepCase start(rule, 0, DType::kF32, DType::kF32, 40, 300, rng);
  DeviceCase there(start, 0, false);
  const int64_t blocks = 40 * blocks_per_row(300, kBlockElements);
  StepItem on_host = start.item(), on_device = there.item();
  const Layout whole = far_layout(300);
  make_far(on_host, whole), make_far(on_device, whole);
  std::vector<BlockNorms> blocks_of_host(static_cast<size_t>(blocks));
  cpu::make_backend("")->norms({&on_host, 1}, 1, blocks_of_host, nullptr);
  const Shared sums(sizeof(kernels::NormSums));
  auto* const got = reinterpret_cast<kernels::NormSums*>(sums.get());
  *got = {};
  const Hyper hyper;
  on_device.norms = got, on_device.hyper = &hyper, on_device.adds_norms = true;
  Batch batch(cuda_kernels::kTileBlocks);
  batch.add_steps({&on_device, 1}, false);
  const Shared table(batch.bytes());
  batch.write(table.get(), table.get());
  const Batch::Launch& part = batch.launches()[0];
  cuda_kernels::StepLaunch launch;
  launch.rule = rule, launch.count = part.count, launch.tiles = part.units;
  launch.items = batch.items(table.get(), part), launch.starts = batch.starts(table.get(), part);
  launch.norms = batch.norms(table.get(), part);
  ASSERT_EQ(cuda_kernels::add_norms(launch, {nullptr, 2, 0}), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  for (int t = 0; t < 2; ++t) {
    ExactSum wanted, sum;
    for (const BlockNorms& block : blocks_of_host) wanted.add(block.sum[t], 2 * std::ilogb(block.unit[t]));
    ExactSum::Limbs limbs;
    std::copy_n(got->limbs[t], limbs.size(), limbs.begin());
    sum.set_limbs(limbs);
    EXPECT_EQ(sum.limbs(), wanted.limbs());
    EXPECT_EQ(got->others[t], 0);
  }
}

// Sums of norms become arguments as the host makes them, for every rule that has norms: norms that are no number, too.
TEST(PtxSteps, PutNormsIntoArgumentsAsTheHostDoes) {
  auto rng = testing::seeded("arguments of norms of PTX", 177);
  constexpr int kCases = 40;
  int rules_with_norms = 0;
  for (int rule = 0; rule < std::ssize(rules()); ++rule) {
    const RuleInfo& info = rule_info(rule);
    if (!info.norms) continue;
    ++rules_with_norms;
    StepCase start(rule, 0, DType::kF32, DType::kF32, 1, 8, rng);
    DeviceCase there(start, 0, false);
    const Shared sums(kCases * sizeof(kernels::NormSums));
    std::vector<Hyper> hypers(kCases);
    std::vector<std::vector<std::byte>> before(kCases), wanted(kCases);
    std::vector<StepItem> items(kCases, there.item());
    for (size_t i = 0; i < kCases; ++i) {
      Hyper& h = hypers[i];
      h.lr = rng.uniform(), h.eps = std::ldexp(rng.uniform(), -20),
      h.weight_decay = rng.chance(0.5) ? rng.uniform() : 0;
      h.trust_coefficient = rng.uniform(), h.max_unorm = rng.chance(0.5) ? rng.uniform() : 0;
      RuleInput input;
      input.lr = h.lr, input.eps = h.eps, input.weight_decay = h.weight_decay, input.t = 7;
      input.trust_coefficient = h.trust_coefficient, input.max_unorm = h.max_unorm;
      before[i].resize(info.args_bytes), wanted[i].resize(info.args_bytes);
      info.make_args(input, before[i].data());
      auto& of = reinterpret_cast<kernels::NormSums*>(sums.get())[i];
      of = {};
      for (int t = 0; t < 2; ++t) {
        ExactSum sum;
        for (int64_t terms = rng.below(4); terms > 0; --terms)
          sum.add(static_cast<float>(rng.over_binades(-100, 100) * rng.over_binades(0, 1)), 0);
        std::copy_n(sum.limbs().begin(), sum.limbs().size(), of.limbs[t]);
        of.others[t] = rng.chance(0.1);
        input.norm[t] = of.others[t] ? std::nan("") : std::sqrt(sum.value());
      }
      info.make_args(input, wanted[i].data());
      items[i].args = before[i].data(), items[i].hyper = &h, items[i].norms = &of, items[i].adds_norms = false;
    }
    Batch batch(cuda_kernels::kTileBlocks);
    batch.add_steps(items, false);
    const Shared table(batch.bytes());
    batch.write(table.get(), table.get());
    const Batch::Launch& part = batch.launches()[0];
    EXPECT_TRUE(part.puts_norms && !part.adds_norms);
    cuda_kernels::StepLaunch launch;
    launch.rule = rule, launch.count = part.count, launch.tiles = part.units;
    launch.items = batch.items(table.get(), part), launch.norms = batch.norms(table.get(), part);
    ASSERT_EQ(cuda_kernels::put_norms(launch, {nullptr, 2, 0}), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    for (size_t i = 0; i < kCases; ++i)
      EXPECT_EQ(std::memcmp(launch.items[i].args, wanted[i].data(), info.args_bytes), 0) << info.name << ", case " << i;
  }
  EXPECT_GT(rules_with_norms, 0);
}

// GradScaler's words become the factor and the verdict that the host makes of them: alone, behind a clip, and in a
// clip.
TEST(PtxScaling, DividesByTheLossScale) {
  struct Memory {
    float scale, found;
    uint32_t first;
    kernels::Clip clip;
    kernels::Sums sums;
  };
  const Shared memory(sizeof(Memory));
  auto& at = *reinterpret_cast<Memory*>(memory.get());
  const cuda_kernels::Queue queue{nullptr, 2, 0};
  ExactSum sum;
  sum.add(9.f, 0), sum.add(16.f, 0);
  int cases = 0;
  for (const float scale : {65536.f, 3.f, 1e-30f, 0.f})
    for (const float found : {0.f, 1.f})
      for (const bool is_measured : {false, true}) {
        at = {scale, found, 5, {7, 0.25, 1}, {}};
        const double by = 1. / static_cast<double>(scale);
        ASSERT_EQ(cuda_kernels::loss_scaling({&at.scale, &at.found}, &at.clip, is_measured, &at.first, queue),
                  cudaSuccess);
        ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
        EXPECT_EQ(at.clip.factor, (is_measured ? 0.25 : 1.) * by) << scale;
        EXPECT_EQ(at.first, found > 0 ? 0 : kernels::kNoItem);
        std::copy_n(sum.limbs().begin(), sum.limbs().size(), at.sums.limbs);
        at.sums.largest = std::bit_cast<uint32_t>(4.f);
        ASSERT_EQ(cuda_kernels::clip(&at.sums, {1, 1, 0, 0, &at.scale}, &at.clip, nullptr, queue), cudaSuccess);
        ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
        EXPECT_EQ(at.clip.norm, by * std::sqrt(25.));
        ++cases;
      }
  at.clip.factor = 0.5;
  ASSERT_EQ(cuda_kernels::loss_scaling({nullptr, &at.found}, &at.clip, true, &at.first, queue), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  EXPECT_EQ(at.clip.factor, 0.5) << "gradients that have been divided";
  figure("{} cases: factor, verdict and norm of the host", cases);
}

// The executor runs two blocks of the large grid that this fill has.
TEST(PtxFills, OfMoreThan16GiB) {
  constexpr int64_t kBytes = (int64_t{17} << 30) + 7, kBlocks = 2;
  cuda_emulator::reset({.memory = size_t{1} << 36});
  std::byte* memory = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&memory), kBytes), cudaSuccess);
  int64_t stride = 0;
  ptx::observe([&](const ptx::Launched& launched) { stride = int64_t{launched.blocks} * launched.threads; });
  ptx::policy().blocks = kBlocks;
  ASSERT_EQ(cuda_kernels::fill(reinterpret_cast<unsigned char*>(memory), 0x5a5a5a5a, kBytes, {nullptr, 1 << 17, 0}),
            cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  ptx::policy().blocks = UINT32_MAX;
  ptx::observe({});
  int64_t words = 0;
  std::vector<std::byte> part(static_cast<size_t>(kBlocks * cuda_kernels::kThreads * 4));
  for (int64_t first = 0; first < kBytes / 4; first += stride) {
    const size_t bytes = std::min<size_t>(part.size(), static_cast<size_t>(kBytes - first * 4));
    ASSERT_EQ(cudaMemcpyAsync(part.data(), memory + first * 4, bytes, cudaMemcpyDeviceToHost, nullptr), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(part[i], std::byte{0x5a}) << first * 4 << " + " << i;
    words += static_cast<int64_t>(bytes / 4);
  }
  EXPECT_GT(kBytes / 4 / stride, 1) << "each thread has one word";
  EXPECT_GT(stride, 1 << 20);
  cudaFree(memory);
  cuda_emulator::reset({});
  std::printf("%lld words of %d blocks, %lld apart\n", static_cast<long long>(words), static_cast<int>(kBlocks),
              static_cast<long long>(stride));
}

// A replay counts itself.
TEST(PtxSteps, ReplaysAreCounted) {
  const Shared memory(sizeof(cuda_kernels::ReplayState));
  auto* const replay = reinterpret_cast<cuda_kernels::ReplayState*>(memory.get());
  *replay = {3, 2, 0};
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(cuda_kernels::finish_replay(replay, {nullptr, 2, 0}), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  }
  EXPECT_EQ(replay->done, 3u);
  EXPECT_EQ(replay->missed, 1u);
}

}  // namespace
}  // namespace lowtide
