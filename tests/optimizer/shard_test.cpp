// Shards cut between rows, however many, have the formats, bits and step counts of the whole parameter.
#include <random>

#include "lowtide/optimizer.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

GroupOptions quantized(const char* state = "dynamic8") {
  GroupOptions group;
  group.hyper.lr = 1e-2;
  group.state = state;
  return group;
}

TensorView rows_of(std::vector<float>& whole, const std::vector<int64_t>& sizes, int64_t first, int64_t rows) {
  std::vector<int64_t> part = sizes;
  part[0] = rows;
  const int64_t row = static_cast<int64_t>(whole.size()) / sizes[0];
  return {rows ? whole.data() + first * row : nullptr, DType::kF32, part, {}};
}

// beta2 = 0.999, so second moments are rounded stochastically.
TEST(Shard, RowsSideBySideAreTheWhole) {
  static constexpr const char* kStates[] = {"dynamic8", "float8", "bf16"};
  const uint32_t seed = random_seed();
  std::mt19937 rng(seed);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint32_t>(n)); };
  const TemporaryDirectory folder;
  int64_t cases = 0, shards = 0, empty = 0, bytes = 0, quantized_cases = 0, paged = 0;
  for (; cases < 40; ++cases) {
    // Some have few rows; the first ones have state that does not fit, ranks without rows, or too few elements.
    std::vector<int64_t> sizes{1 + below(below(2) ? 6 : 40), 1 + below(below(2) ? 3000 : 300)};
    if (below(2)) sizes.push_back(1 + below(4));
    int64_t ranks = 1 + below(6);
    if (cases == 0) sizes = {40, 2000}, ranks = 2;
    if (cases == 1) sizes = {1, 5000}, ranks = 3;
    if (cases == 2) sizes = {2, 10};
    int64_t numel = 1;
    for (const int64_t size : sizes) numel *= size;
    std::vector<float> start(static_cast<size_t>(numel)), gradient(start.size());
    std::normal_distribution<float> normal;
    for (float& value : start) value = normal(rng);

    // Rank 1 keeps its state on disk.
    std::vector<float> whole = start, cut = start;
    Optimizer one({.rule = "adamw"});
    const char* const state = kStates[rng() % std::size(kStates)];
    one.add_param(one.add_group(quantized(state)), rows_of(whole, sizes, 0, sizes[0]));
    const int64_t each = (sizes[0] + ranks - 1) / ranks;
    std::vector<Optimizer> many;
    std::vector<int64_t> firsts;
    for (int64_t r = 0; r < ranks; ++r) {
      const int64_t first = std::min(r * each, sizes[0]), rows = std::min(each, sizes[0] - first);
      std::vector<int64_t> offsets(sizes.size());
      offsets[0] = first;
      Memory memory;
      if (r == 1) memory = {.host = 32 << 10, .disk = folder.path(), .chunk = 4096};
      Optimizer& rank = many.emplace_back(OptimizerOptions{.rule = "adamw", .memory = memory});
      rank.add_param(rank.add_group(quantized(state)), rows_of(cut, sizes, first, rows), true,
                     WholeParam{sizes, false, offsets});
      firsts.push_back(first);
      ++shards;
      empty += rows == 0;
      ASSERT_STREQ(rank.state_codec(0), one.state_codec(0)) << "seed " << seed;
      rank.place_states();
      ASSERT_TRUE(rank.has_state(0));
    }
    const int64_t row = numel / sizes[0];
    for (int step = 0; step < 3; ++step) {
      for (float& value : gradient) value = normal(rng);
      one.step(std::vector<Gradient>{{gradient.data()}});
      for (size_t r = 0; r < many.size(); ++r) many[r].step(std::vector<Gradient>{{gradient.data() + firsts[r] * row}});
    }
    ASSERT_EQ(std::memcmp(whole.data(), cut.data(), whole.size() * sizeof(float)), 0) << "seed " << seed;
    quantized_cases += std::string(one.state_codec(0)) != "fp32";
    for (int k = 0; k < 2; ++k) {
      const StateView view = one.state(0)[static_cast<size_t>(k)];
      std::vector<std::byte> codes(static_cast<size_t>(numel * view.code_bits / 8));
      std::vector<float> scales(static_cast<size_t>(view.rows * view.scales_per_row));
      for (size_t r = 0; r < many.size(); ++r) {
        ASSERT_EQ(many[r].steps(0), 3) << "seed " << seed << ": rows or none, a step is a step";
        ASSERT_EQ(many[r].state(0)[static_cast<size_t>(k)].scales_per_row, view.scales_per_row);
        many[r].read_state(0, k, codes.data() + firsts[r] * row * view.code_bits / 8,
                           scales.data() + firsts[r] * view.scales_per_row);
        paged += many[r].report().disk_bytes > 0;
      }
      ASSERT_EQ(std::memcmp(codes.data(), view.codes, codes.size()), 0) << "seed " << seed;
      if (view.scales) {
        ASSERT_EQ(std::memcmp(scales.data(), view.scales, scales.size() * sizeof(float)), 0);
      }
      bytes += static_cast<int64_t>(codes.size() + scales.size() * sizeof(float));
    }
    bytes += static_cast<int64_t>(whole.size() * sizeof(float));
  }
  EXPECT_GT(empty, 0);
  EXPECT_GT(quantized_cases, 0);
  EXPECT_LT(quantized_cases, cases) << "some are below the threshold";
  EXPECT_GT(paged, 0);
  figure("seed {}: {} parameters in {} shards ({} without rows), {} with blocks; {} bytes, 0 differ", seed, cases,
         shards, empty, quantized_cases, bytes);
}

TEST(Shard, FormatsDependOnTheWholeAndTheKindOfCut) {
  struct Case {
    std::vector<int64_t> shard, whole;
    bool rows_cut;
    const char* codec;
  };
  const Case cases[] = {
      {{2, 300}, {40, 300}, false, "dynamic8"},   // the shard alone would be below the threshold
      {{0, 300}, {40, 300}, false, "dynamic8"},   // this shard alone would save nothing
      {{40, 300}, {40, 300}, false, "dynamic8"},  // the only shard
      {{40, 256}, {40, 512}, true, "fp32"},       // these blocks would be whole, but not those of three ranks
      {{40, 512}, {40, 512}, true, "fp32"},       // the only shard makes no exception
      {{2500}, {5000}, true, "fp32"},
      {{5, 300}, {10, 300}, false, "fp32"},  // the whole is below the threshold
      {{2500, 1}, {5000, 1}, false, "fp32"},
  };
  std::vector<float> memory(40 * 512);
  int right = 0;
  for (const Case& c : cases) {
    Optimizer optimizer({.rule = "adamw"});
    const TensorView view{memory.data(), DType::kF32, c.shard, {}};
    optimizer.add_param(optimizer.add_group(quantized()), view, true, WholeParam{c.whole, c.rows_cut});
    EXPECT_STREQ(optimizer.state_codec(0), c.codec) << right;
    ++right;
  }
  Optimizer optimizer({.rule = "adamw"});
  const int group = optimizer.add_group(quantized());
  const Case refused[] = {{{2, 300}, {300}, false, ""},      {{41, 300}, {40, 300}, false, ""},
                          {{40, 256}, {40, 512}, false, ""}, {{2500}, {5000}, false, ""},
                          {{8, 8}, {8, -8}, true, ""},       {{8, 9}, {8, 8}, true, ""}};
  for (const Case& c : refused)
    EXPECT_THROW(
        optimizer.add_param(group, {memory.data(), DType::kF32, c.shard, {}}, true, WholeParam{c.whole, c.rows_cut}),
        Error);
  EXPECT_EQ(optimizer.param_count(), 0);
  figure("{} formats as they should be, {} impossible shards refused", right, std::size(refused));
}

// FSDP1 cuts vectors at any place. Blocks begin with the piece, so pieces that begin at blocks equal the whole.
TEST(Shard, PiecesOfAVectorAtBlocksAreTheWhole) {
  int64_t bytes = 0, quantized_pieces = 0;
  for (const char* const state : {"dynamic8", "float8", "bf16", "dynamic4"}) {
    for (const int64_t cut : {int64_t{768}, int64_t{5120}, int64_t{701}}) {
      const int64_t numel = 6000;
      std::vector<float> whole(numel, 0.5f), pieces = whole, gradient(whole.size());
      Optimizer one({.rule = "adamw"});
      GroupOptions group = quantized(state);
      one.add_param(one.add_group(group), {whole.data(), DType::kF32, {numel}, {}});
      std::vector<Optimizer> two;
      for (int64_t r = 0; r < 2; ++r) {
        const int64_t first = r * cut, count = r ? numel - cut : cut;
        Optimizer& piece = two.emplace_back(OptimizerOptions{.rule = "adamw"});
        const TensorView view{pieces.data() + first, DType::kF32, {count}, {}};
        piece.add_param(piece.add_group(group), view, true, WholeParam{{numel}, false, {first}});
        const bool odd = std::string(state) == "dynamic4" && count % 2 != 0;  // does not fill whole bytes
        EXPECT_STREQ(piece.state_codec(0), odd ? "dynamic8" : state) << "as the whole, though below the threshold";
        quantized_pieces += count < 4096;
      }
      for (int step = 0; step < 4; ++step) {
        for (size_t i = 0; i < gradient.size(); ++i)
          gradient[i] = std::sin(static_cast<float>(i) * static_cast<float>(step + 1));
        one.step(std::vector<Gradient>{{gradient.data()}});
        for (size_t r = 0; r < 2; ++r) two[r].step(std::vector<Gradient>{{gradient.data() + (r ? cut : 0)}});
      }
      const bool same = std::memcmp(whole.data(), pieces.data(), whole.size() * sizeof(float)) == 0;
      EXPECT_EQ(same, cut % 256 == 0 || std::string(state) == "bf16") << state << ", cut at " << cut;
      bytes += same ? static_cast<int64_t>(whole.size() * sizeof(float)) : 0;
    }
  }
  figure("{} bytes of weights, 0 differ; {} pieces below the threshold have the format of the whole", bytes,
         quantized_pieces);
}

TEST(Shard, CheckSaysWhatAStepWouldDo) {
  std::vector<float> p(8192, 1.0f), g(p.size(), 0.5f);
  Optimizer optimizer({.rule = "adamw"});
  optimizer.add_param(optimizer.add_group(quantized()), {p.data(), DType::kF32, {32, 256}, {}});
  const std::vector<Gradient> gradients{{g.data()}};
  EXPECT_TRUE(optimizer.check(gradients).applied);
  g[5000] = std::numeric_limits<float>::quiet_NaN();
  const StepResult bad = optimizer.check(gradients);
  EXPECT_FALSE(bad.applied);
  EXPECT_EQ(bad.nonfinite_param, 0);
  optimizer.set_nonfinite(NonFinite::kRaise);
  EXPECT_THROW(optimizer.check(gradients), Error);
  EXPECT_EQ(p, std::vector<float>(p.size(), 1.0f));
  EXPECT_EQ(optimizer.steps(0), 0);
  EXPECT_EQ(optimizer.report().skipped_steps, 0);
  figure("3 checks of {} elements, 0 changed", p.size());
}

}  // namespace
}  // namespace lowtide::testing
