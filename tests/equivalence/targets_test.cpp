// Every rule, codec and pair of element types gives the same bits on every instruction set and number of threads as the
// plainest instruction set, one float at a time where the library has that, on one thread.
#include "backend/cpu/targets.h"
//
#include <hwy/highway.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kernel_tables.h"
#include "lowtide/optimizer.h"
#include "support/plainest_target.h"
#include "support/step_case.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int kSteps = 3;

// (rows, row length): empty, one element, short tails, whole blocks, and enough blocks that two threads share the work.
std::vector<std::pair<int64_t, int64_t>> shapes(Rng& rng) {
  std::vector<std::pair<int64_t, int64_t>> out = {{0, 5}, {3, 0}, {1, 1}, {2, 256}, {7, 512}, {1, 256 * 300 + 77}};
  out.emplace_back(1, rng.between(1, 255));
  out.emplace_back(rng.between(2, 40), rng.between(1, 255));
  out.emplace_back(rng.between(2, 5), rng.between(257, 1200));
  out.emplace_back(1, 256 * rng.between(1, 4) + rng.between(1, 255));
  return out;
}

cpu::StepKernel cpu_kernel(int rule, int codec, int pair) {
  cpu::StepKernel kernel = nullptr;
#define LT_RULE(number, name, Rule) \
  if (rule == (number)) kernel = cpu::pick_step_##name(codec, pair, HWY_SCALAR);
#include "portable/rules.def"
#undef LT_RULE
  return kernel;
}

std::vector<StepCase> make_cases(int rule, int codec, int pair, uint64_t seed) {
  Rng rng(seed);
  std::vector<StepCase> cases;
  for (const auto& [rows, length] : shapes(rng))
    cases.emplace_back(rule, codec, static_cast<DType>(pair / 3), static_cast<DType>(pair % 3), rows, length, rng);
  return cases;
}

void take_steps(Backend& backend, std::vector<StepCase>& cases, int threads, uint64_t seed) {
  Rng rng(seed);
  for (int step = 0; step < kSteps; ++step) {
    for (StepCase& c : cases) {
      c.new_gradients(rng);
      c.set_step(step + 1, step == 0);
    }
    step_all(backend, cases, threads);
  }
}

bool all_finite(const StepCase& c) {
  for (int64_t i = 0; i < c.layout.numel; ++i)
    if (!std::isfinite(element(c.param.data(), c.param_dtype, i))) return false;
  return true;
}

TEST(Targets, AllGiveTheBitsOfScalarCode) {
  constexpr uint64_t kSeed = 20;
  figure("targets: seed {} + combination", kSeed);
  int64_t grid = 0, comparisons = 0, bytes = 0, differing = 0, still = 0;
  const auto plainest = cpu::make_backend(plainest_target());
  for (int rule = 0; rule < cpu::kRules; ++rule)
    for (int codec = 0; codec < cpu::kCodecs; ++codec)
      for (int pair = 0; pair < cpu::kPairs; ++pair) {
        // Pairs without kernels of their own differ in nothing that depends on the rule, so one of them is enough.
        const bool own = cpu_kernel(rule, codec, pair) != nullptr;
        if (!own && pair != 1 + (rule + codec) % (cpu::kPairs - 1)) continue;
        if (!in_share(grid++)) continue;
        const uint64_t seed = kSeed + static_cast<uint64_t>((rule * cpu::kCodecs + codec) * cpu::kPairs + pair);
        const std::vector<StepCase> start = make_cases(rule, codec, pair, seed);
        std::vector<StepCase> wanted = start;
        take_steps(*plainest, wanted, 1, seed);
        for (size_t i = 0; i < wanted.size(); ++i) {
          ASSERT_TRUE(all_finite(wanted[i])) << rule_info(rule).name << " pair " << pair << ": equality is promised "
                                             << "for finite values only";
          still += wanted[i].layout.numel > 256 && differing_bytes(wanted[i], start[i]) == 0;
        }
        for (const std::string& target : cpu_targets())
          for (const int threads : {1, 2}) {
            if (target == plainest->target() && threads == 1) continue;
            std::vector<StepCase> got = start;
            take_steps(*cpu::make_backend(target), got, threads, seed);
            for (size_t i = 0; i < got.size(); ++i) {
              const int64_t bad = differing_bytes(got[i], wanted[i]);
              if (bad)
                ADD_FAILURE() << rule_info(rule).name << " " << codec_info(codec).name << " pair " << pair << " "
                              << target << " threads " << threads << " case " << i << ": " << bad << " bytes; "
                              << same_bits(got[i].param.data(), wanted[i].param.data(), got[i].param_dtype,
                                           got[i].layout.numel)
                                     .message();
              differing += bad, bytes += got[i].bytes(), ++comparisons;
            }
          }
      }
  EXPECT_EQ(differing, 0);
  EXPECT_EQ(still, 0) << "control: steps must change something";
  figure("targets: {} on 1 thread", compared_targets());
  figure("{} comparisons after {} steps, {} bytes, {} differ", comparisons, kSteps, bytes, differing);
}

// Else an equality test could compare a kernel with itself.
TEST(Targets, HaveKernelsOfTheirOwn) {
  const bool one = cpu_targets().size() == 1;  // LOWTIDE_NATIVE: whatever is asked for, there are kernels of one
  int sets = 0, staged = 0;
  for (int codec = 0; codec < cpu::kCodecs; ++codec)
    for (int pair = 0; pair < cpu::kPairs; ++pair) {
#define LT_RULE(number, name, Rule)                                                                  \
  {                                                                                                  \
    std::set<cpu::StepKernel> kernels = {cpu::pick_step_##name(codec, pair, HWY_SCALAR)};            \
    size_t wanted = 1;                                                                               \
    for (const int64_t bit : {int64_t{HWY_AVX3_DL}, int64_t{HWY_AVX3}, int64_t{HWY_AVX2}}) {         \
      if (one || !(hwy::SupportedTargets() & bit)) continue;                                         \
      kernels.insert(cpu::pick_step_##name(codec, pair, bit));                                       \
      ++wanted;                                                                                      \
    }                                                                                                \
    EXPECT_EQ(wanted, cpu_targets().size());                                                         \
    const bool none = kernels.count(nullptr) != 0; /* the pair passes through floats */              \
    EXPECT_FALSE(none&& pair == 0) << #name << " codec " << codec;                                   \
    EXPECT_EQ(kernels.size(), none ? 1 : wanted) << #name << " codec " << codec << " pair " << pair; \
    sets += !none, staged += none;                                                                   \
  }
#include "portable/rules.def"
#undef LT_RULE
    }
  figure("{} kernels, each a different function on {} targets; {} pairs pass through floats", sets,
         cpu_targets().size(), staged);
}

TEST(Targets, DoNotDependOnTheOrderOfParameters) {
  auto rng = seeded("order", 21);
  int64_t comparisons = 0;
  for (const std::string& target : cpu_targets()) {
    const auto backend = cpu::make_backend(target);
    for (int rule = 0; rule < cpu::kRules; ++rule) {
      std::vector<StepCase> wanted = make_cases(rule, 2, static_cast<int>(rng.below(9)), rng.next());
      std::vector<StepCase> got = wanted;
      step_all(*backend, wanted, 1);
      std::vector<StepItem> items;
      for (const size_t i : rng.permutation(got.size())) items.push_back(got[i].item());
      backend->step(items, 2, false, nullptr);
      for (size_t i = 0; i < got.size(); ++i, ++comparisons)
        EXPECT_EQ(differing_bytes(got[i], wanted[i]), 0) << target << " rule " << rule << " case " << i;
    }
  }
  figure("{} comparisons, 0 differ", comparisons);
}

}  // namespace
}  // namespace lowtide::testing
