// Norms of every rule that has them: the same bits on every instruction set and number of threads, and what the
// definition says, also where squares would overflow or underflow. In parts: tests/golden, through chunks of a disk.
#include "backend/cpu/cpu_backend.h"
#include "lowtide/optimizer.h"
#include "support/plainest_target.h"
#include "support/step_case.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

std::vector<int> norm_rules() {
  std::vector<int> found;
  for (int rule = 0; rule < std::ssize(rules()); ++rule)
    if (rule_info(rule).norms) found.push_back(rule);
  return found;
}

std::vector<StepCase> make_cases(int rule, int codec, int pair, Rng& rng) {
  std::vector<std::pair<int64_t, int64_t>> shapes = {{0, 5}, {3, 0}, {1, 1}, {2, 256}, {7, 512}, {1, 256 * 300 + 77}};
  shapes.emplace_back(rng.between(2, 40), rng.between(1, 255));
  shapes.emplace_back(rng.between(2, 5), rng.between(257, 1200));
  std::vector<StepCase> cases;
  for (const auto& [rows, length] : shapes)
    cases.emplace_back(rule, codec, static_cast<DType>(pair / 3), static_cast<DType>(pair % 3), rows, length, rng);
  return cases;
}

std::vector<BlockNorms> norms_of(Backend& backend, std::span<const StepItem> items, int threads) {
  int64_t blocks = 0;
  for (const StepItem& item : items)
    blocks += item.blocks >= 0 ? item.blocks : item.param_layout->blocks(kBlockElements) - item.first_block;
  std::vector<BlockNorms> out(static_cast<size_t>(blocks));
  std::memset(static_cast<void*>(out.data()), 0xa5, out.size() * sizeof out[0]);
  backend.norms(items, threads, out, nullptr);
  return out;
}

std::vector<StepItem> items_of(std::vector<StepCase>& cases) {
  std::vector<StepItem> items;
  for (StepCase& c : cases) items.push_back(c.item());
  return items;
}

int64_t differing(const std::vector<BlockNorms>& a, const std::vector<BlockNorms>& b) {
  EXPECT_EQ(a.size(), b.size());
  return differing_bytes(reinterpret_cast<const std::byte*>(a.data()), reinterpret_cast<const std::byte*>(b.data()),
                         static_cast<int64_t>(a.size() * sizeof a[0]));
}

TEST(Norms, AllTargetsGiveTheBitsOfScalarCode) {
  auto rng = seeded("norms", 60);
  int64_t calls = 0, blocks = 0, bad = 0;
  const auto plainest = cpu::make_backend(plainest_target());
  const std::vector<int> with_norms = norm_rules();
  constexpr int kPairs[] = {0, 4, 8, 5};  // a block becomes floats before anything else
  const auto columns = std::ssize(with_norms) * std::ssize(kPairs);
  for (int codec = 0; codec < std::ssize(codecs()); ++codec)
    for (int64_t column = 0, i = 0; i < std::ssize(with_norms); ++i)
      for (const int pair : kPairs) {
        if (!in_share(codec, column++, columns)) continue;
        const int rule = with_norms[static_cast<size_t>(i)];
        std::vector<StepCase> cases = make_cases(rule, codec, pair, rng);
        const std::vector<StepCase> before = cases;
        const std::vector<BlockNorms> wanted = norms_of(*plainest, items_of(cases), 1);
        for (const std::string& target : cpu_targets())
          for (const int threads : {1, 2, 8}) {
            bad += differing(norms_of(*cpu::make_backend(target), items_of(cases), threads), wanted);
            ++calls, blocks += std::ssize(wanted);
          }
        for (size_t i = 0; i < cases.size(); ++i) EXPECT_EQ(differing_bytes(cases[i], before[i]), 0);
      }
  EXPECT_EQ(bad, 0);
  figure("{} calls, {} blocks, {} bytes differ; targets: {}", calls, blocks, bad, testing::compared_targets().c_str());
}

// LARS sums squares of parameter and gradient. They are exact but for the roundings of 256 squares and their sum (5
// additions of halves, 7 in a lane, a multiplication and the square: 14 * 2^-24; a square that underflows is 2^-74 of
// the largest).
TEST(Norms, AreSumsOfSquaresOfAnyMagnitude) {
  auto rng = seeded("magnitudes of norms", 62);
  constexpr double kBound = 15 * 0x1p-24;
  double worst = 0;
  int64_t blocks = 0, beyond_float = 0;
  const auto backend = cpu::make_backend("");
  for (int round = 0; round < 400; ++round) {
    StepCase c(find_rule("lars"), 0, DType::kF32, DType::kF32, 1, rng.between(1, 256), rng);
    // Blocks of one binade, of a few, or of all: up to 2^127 in parameters, below 2^62 in gradients.
    const int top = static_cast<int>(rng.between(-149, 127)),
              bottom = std::max<int>(-149, top - std::vector{0, 4, 300}[size_t(round % 3)]);
    for (int64_t i = 0; i < c.layout.numel; ++i) {
      put(c.param, DType::kF32, i, std::ldexp(1 + rng.uniform() / 2, int(rng.between(bottom, top))));
      put(c.grad, DType::kF32, i,
          rng.chance(0.1) ? 0 : -std::ldexp(1 + rng.uniform() / 2, std::min(int(rng.between(bottom, top)), 61)));
    }
    const StepItem item = c.item();
    const BlockNorms got = norms_of(*backend, {&item, 1}, 1)[0];
    for (int t = 0; t < 2; ++t, ++blocks) {
      double wanted = 0;
      for (int64_t i = 0; i < c.layout.numel; ++i) {
        const double x = element((t ? c.grad : c.param).data(), DType::kF32, i);
        wanted += x * x;
      }
      const double sum = double{got.sum[t]} * got.unit[t] * got.unit[t];
      ASSERT_TRUE(wanted == 0 ? sum == 0 : std::fabs(sum / wanted - 1) <= kBound)
          << "2^" << bottom << "..2^" << top << ": got " << sum << ", wanted " << wanted;
      if (wanted > 0) worst = std::max(worst, std::fabs(sum / wanted - 1));
      beyond_float += wanted > 0x1p127 || (wanted > 0 && wanted < 0x1p-149);
    }
  }
  EXPECT_GT(beyond_float, blocks / 4) << "control";
  figure("{} sums, {} of them no floats; at most {} of the bound off", blocks, beyond_float, worst / kBound);
}

}  // namespace
}  // namespace lowtide::testing
