// 16-bit weights with a master: with 16 bits of residual they equal the float32 weights of the same run for every rule
// and state format; with 8 bits they are close; rounded stochastically they are right on average. Steps of length 0
// change no bit of weights and residuals. Threads, instruction sets and budgets: tests/golden.

#include "lowtide/optimizer.h"
#include "support/optimizer_case.h"
#include "support/compare.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int64_t kRows = 5, kColumns = 1000;
constexpr int64_t kCount = kRows * kColumns;

struct Options {
  std::string rule = "adamw", state = "dynamic8", master = "";
  DType dtype = DType::kBF16;
  double momentum = 0.9;  // for SGD
};

// An optimizer of one parameter, which owns the parameter's memory.
struct Trial {
  std::vector<std::byte> weights;
  Optimizer optimizer;
  DType dtype;

  Trial(const Options& o, const std::vector<float>& start, DType as)
      : weights(static_cast<size_t>(kCount * dtype_bytes(as))), optimizer({.rule = o.rule, .threads = 1}), dtype(as) {
    if (as == DType::kF32)
      std::memcpy(weights.data(), start.data(), weights.size());
    else
      split_master("", as, start.data(), kCount, weights.data(), nullptr);
    GroupOptions group{.hyper = default_hyper(o.rule)};
    if (o.rule == "sgd") group.hyper.momentum = o.momentum;
    group.state = o.state;
    group.min_quantized_numel = 0;
    group.master = o.master;
    optimizer.add_group(group);
    optimizer.add_param(0, {weights.data(), as, {kRows, kColumns}}, true);
  }

  void step(const std::vector<float>& grad) {
    const Gradient g{grad.data(), DType::kF32, nullptr};
    optimizer.step({&g, 1});
  }

  // Returns the stored residual.
  std::vector<std::byte> residual() {
    const std::vector<StateView> views = optimizer.state(0);
    if (views.empty() || views.back().name != std::string("residual")) return {};
    std::vector<std::byte> out(static_cast<size_t>(kCount * views.back().code_bits / 8));
    optimizer.read_state(0, static_cast<int>(views.size()) - 1, out.data(), nullptr);
    return out;
  }

  std::vector<float> values(const std::string& master) {
    std::vector<float> out(kCount);
    if (dtype == DType::kF32)
      std::memcpy(out.data(), weights.data(), weights.size());
    else
      join_master(master, dtype, weights.data(), residual().data(), kCount, out.data());
    return out;
  }
};

// Returns magnitudes that fp16 holds with all its bits, so that it is exact, too.
std::vector<float> start_values(Rng& rng) {
  std::vector<float> out(kCount);
  for (float& x : out) {
    x = static_cast<float>(rng.over_binades(-6, 2));
    uint16_t half;
    split_master("", DType::kBF16, &x, 1, &half, nullptr);
    join_master("", DType::kBF16, &half, nullptr, 1, &x);
  }
  return out;
}

std::vector<float> gradient(Rng& rng) {
  std::vector<float> out(kCount);
  for (float& x : out) x = rng.chance(0.1) ? 0.f : static_cast<float>(rng.over_binades(-12, 0));
  return out;
}

TEST(Master, ResidualsOf16BitsAreFloat32) {
  constexpr int kSteps = 6;
  Rng rng = seeded("residual16", 31);
  int64_t runs = 0, differing = 0, small = 0;
  for (const std::string& rule : rule_names())
    for (const std::string& state : codec_names_of(rule, {}))
      for (const DType dtype : {DType::kBF16, DType::kF16}) {
        const std::vector<float> start = start_values(rng);
        Trial wanted({rule, state}, start, DType::kF32), got({rule, state, "residual16"}, start, dtype);
        for (int t = 0; t < kSteps; ++t) {
          const std::vector<float> g = gradient(rng);
          wanted.step(g), got.step(g);
        }
        const std::vector<float> a = wanted.values(""), b = got.values("residual16");
        for (int64_t i = 0; i < kCount; ++i) {
          const auto at = static_cast<size_t>(i);
          // Below 2^-14, fp16 is exact to 2^-41, and values that come from there carry that error.
          const bool exact = dtype == DType::kBF16 || std::fabs(a[at]) > 0x1p-10f;
          small += !exact;
          const bool same = exact ? differing_bytes(&a[at], &b[at], 4) == 0 : std::fabs(a[at] - b[at]) < 0x1p-36f;
          if (!same && differing++ < 3) ADD_FAILURE() << rule << " " << state << ": " << a[at] << ", got " << b[at];
        }
        ++runs;
      }
  figure("{} runs of {} steps of {} weights: {} differ from float32 ({} in fp16 below 2^-10, to 2^-36)", runs, kSteps,
         kCount, differing, small);
}

// Norms of a parameter equal those of its float32 weights, however many calls compute them.
TEST(Master, NormsOfManyBlocksAreThoseOfFloat32) {
  constexpr int64_t kManyRows = (int64_t{1} << 16) + 3000, kMany = 2 * kManyRows;
  Rng rng = seeded("many blocks", 37);
  std::vector<float> wanted(kMany), grad(kMany), got(kMany);
  for (float& x : wanted) x = static_cast<float>(rng.over_binades(-6, 2));
  for (float& x : grad) x = static_cast<float>(rng.over_binades(-12, 0));
  std::vector<uint16_t> half(kMany), residual(kMany);
  split_master("residual16", DType::kBF16, wanted.data(), kMany, half.data(), residual.data());
  const auto make = [](void* data, DType dtype, const std::string& master) {
    auto made = std::make_unique<Optimizer>(OptimizerOptions{.rule = "lamb", .threads = 1});
    GroupOptions group{.hyper = default_hyper("lamb"), .master = master};
    made->add_group(group);
    made->add_param(0, {data, dtype, {kManyRows, 2}}, true);
    return made;
  };
  const auto plain = make(wanted.data(), DType::kF32, ""), with = make(half.data(), DType::kBF16, "residual16");
  with->write_state(0, 2, residual.data(), nullptr);
  const Gradient g{grad.data(), DType::kF32, nullptr};
  for (int t = 0; t < 2; ++t) plain->step({&g, 1}), with->step({&g, 1});
  with->read_state(0, 2, residual.data(), nullptr);
  join_master("residual16", DType::kBF16, half.data(), residual.data(), kMany, got.data());
  const int64_t bad = differing_bytes(wanted.data(), got.data(), kMany * int64_t{sizeof(float)});
  EXPECT_EQ(bad, 0);
  figure("{} blocks: {} bytes differ from float32", kManyRows, bad);
}

// With 8 bits of residual each step moves a bfloat16 weight off by at most 2^-16 of itself.
TEST(Master, ResidualsOf8BitsAreNear) {
  constexpr int kSteps = 50;
  Rng rng = seeded("residual8", 33);
  const std::vector<float> start = start_values(rng);
  Trial wanted({}, start, DType::kF32), got({.master = "residual8"}, start, DType::kBF16),
      plain({}, start, DType::kBF16);
  for (int t = 0; t < kSteps; ++t) {
    const std::vector<float> g = gradient(rng);
    wanted.step(g), got.step(g), plain.step(g);
  }
  double worst = 0, without = 0;
  const std::vector<float> a = wanted.values(""), b = got.values("residual8"), c = plain.values("");
  for (size_t i = 0; i < a.size(); ++i) {
    // AdamW's steps depend on the weight only through its decay of 1e-5, so errors add up.
    const double unit = std::fmax(std::fabs(a[i]), std::fabs(start[i])) * 0x1p-16;
    worst = std::fmax(worst, std::fabs(double(a[i]) - b[i]) / unit);
    without = std::fmax(without, std::fabs(double(a[i]) - c[i]) / unit);
  }
  EXPECT_LE(worst, kSteps * 1.01);
  EXPECT_GT(without, kSteps) << "control: without residual weights must be off";
  figure("{} steps: off by {} of 2^-16 at most, bound {}; without residual {}", kSteps, worst, kSteps, without);
}

// Steps of 1/16 of a unit in the last place: rounded to nearest, nothing ever moves; rounded stochastically, the mean
// of n weights is off by the scatter of n * kSteps roundings of one unit.
TEST(Master, StochasticWeightsAreRightOnAverage) {
  constexpr int kSteps = 64;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const double unit = dtype == DType::kBF16 ? 0x1p-7 : 0x1p-10;
    const std::vector<float> start(kCount, 1.5f), ones(kCount, 1.f);
    double means[2] = {};
    for (const std::string master : {"", "stochastic"}) {
      Trial run({.rule = "sgd", .master = master}, start, dtype);
      Hyper hyper = run.optimizer.hyper(0);
      hyper.lr = unit / 16, hyper.momentum = 0;
      run.optimizer.set_hyper(0, hyper);
      for (int t = 0; t < kSteps; ++t) run.step(ones);
      double sum = 0;
      for (const float x : run.values(master)) sum += 1.5 - x;
      means[!master.empty()] = sum / kCount / unit;
    }
    const double exact = kSteps / 16.0;
    const double scatter = std::sqrt(kSteps * (1 / 16.0) * (15 / 16.0) / kCount);
    EXPECT_EQ(means[0], 0) << "control";
    EXPECT_NEAR(means[1], exact, 5 * scatter);
    figure("{}: {} steps of 1/16 unit move the mean by {} units (exact {}, 5 sigma {}); to nearest by {}",
           dtype == DType::kBF16 ? "bfloat16" : "float16", kSteps, means[1], exact, 5 * scatter, means[0]);
  }
}

TEST(Master, StepsOfLengthZeroChangeNothing) {
  Rng rng = seeded("still", 34);
  int64_t runs = 0, differing = 0;
  for (const std::string master : {"residual16", "residual8", "stochastic"})
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      Trial run({.master = master}, start_values(rng), dtype);
      for (int t = 0; t < 3; ++t) run.step(gradient(rng));
      Hyper still = run.optimizer.hyper(0);
      still.lr = 0;
      run.optimizer.set_hyper(0, still);
      const std::vector<std::byte> weights = run.weights, residual = run.residual();
      for (int t = 0; t < 3; ++t) run.step(gradient(rng));
      const bool same = weights == run.weights && residual == run.residual();
      EXPECT_TRUE(same) << master;
      differing += !same, ++runs;
    }
  figure("{} runs, {} changed", runs, differing);
}

TEST(Master, FilesHoldResiduals) {
  Rng rng = seeded("files", 35);
  const std::string path = std::filesystem::temp_directory_path() / ("master-" + std::to_string(getpid()) + ".lowtide");
  for (const auto& [rule, master] : {std::pair("adamw", "residual16"), {"adamw", "residual8"}, {"sgd", "residual16"}}) {
    Options how{.rule = rule, .master = master};
    how.momentum = 0;
    Trial first(how, start_values(rng), DType::kBF16);
    for (int t = 0; t < 3; ++t) first.step(gradient(rng));
    first.optimizer.save(path);
    Trial second(how, start_values(rng), DType::kBF16);
    second.weights = first.weights;
    second.optimizer.rebind(0, {second.weights.data(), DType::kBF16, {kRows, kColumns}});
    second.optimizer.load(path);
    EXPECT_EQ(first.residual(), second.residual());
    const std::vector<float> g = gradient(rng);
    first.step(g), second.step(g);
    EXPECT_EQ(first.weights, second.weights);
    EXPECT_EQ(first.residual(), second.residual());
    Trial other({.rule = rule}, start_values(rng), DType::kBF16);
    EXPECT_THROW(other.optimizer.load(path), Error) << "a run without residual";
  }
  std::filesystem::remove(path);
}

TEST(Master, RefusesWhatCannotBe) {
  Optimizer optimizer{OptimizerOptions()};
  GroupOptions group{.master = "residual12"};
  EXPECT_THROW(optimizer.add_group(group), Error);
  std::vector<float> start(kCount, 1.f);
  EXPECT_THROW(join_master("residual16", DType::kF32, start.data(), start.data(), 1, start.data()), Error);
  EXPECT_THROW(join_master("residual16", DType::kBF16, start.data(), nullptr, 1, start.data()), Error);
  EXPECT_THROW(split_master("residual8", DType::kF16, start.data(), -1, start.data(), start.data()), Error);
  Trial run({.rule = "sgd", .master = "residual16"}, start, DType::kBF16);
  EXPECT_THROW(run.optimizer.rebind(0, {run.weights.data(), DType::kF16, {kRows, kColumns}}), Error);
  std::vector<float> out(kCount);
  EXPECT_THROW(run.optimizer.export_state(0, 1, out.data()), Error) << "a residual is no state";
}

}  // namespace
}  // namespace lowtide::testing
