// Weights to evaluate and weights to train: their definition, equal bits everywhere, and what is refused meanwhile.
#include "optim/optimizer_impl.h"
#include "support/faulty_env.h"
#include "support/optimizer_case.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

// Sizes with whole blocks and with partial last blocks.
const std::vector<std::vector<int64_t>> kSizes = {{40, 300}, {3, 256}, {5000}, {1}, {}, {0, 7}};

struct Trained {
  std::deque<Tensor> params;
  Optimizer optimizer;

  Trained(const Config& config, DType dtype, int steps, uint64_t seed = 7) : optimizer(make_optimizer(config)) {
    Rng rng(seed);
    for (const auto& sizes : kSizes) {
      params.emplace_back(dtype, sizes).randomize(rng);
      optimizer.add_param(0, params.back().view());
    }
    step(steps, seed + 1);
  }
  void step(int steps, uint64_t seed) {
    Rng rng(seed);
    std::deque<Tensor> grads;
    std::vector<Gradient> all;
    for (const auto& sizes : kSizes) {
      grads.emplace_back(DType::kF32, sizes).randomize(rng);
      all.push_back(grads.back().gradient());
      if (grads.back().numel == 0) all.back().data = this;
    }
    for (int i = 0; i < steps; ++i) optimizer.step(all);
  }
  std::vector<std::byte> everything() const {
    std::vector<const Tensor*> all;
    for (const Tensor& param : params) all.push_back(&param);
    return snapshot(optimizer, all);
  }
};

Config config_of(const std::string& state, const std::string& master = "") {
  Config config{.rule = "schedulefree"};
  config.hyper = default_hyper(config.rule);
  config.hyper.weight_decay = 0.1;
  config.state = state, config.master = master;
  config.min_quantized_numel = 100;
  return config;
}

const std::vector<std::string> kStates = {"fp32", "bf16", "dynamic8", "float8"};

// x = y - d (1 - b1) / b1 from stored values: the product is rounded once and the difference once.
TEST(Averages, AreTheWeightsLessAShareOfTheFirstState) {
  double farthest = 0;
  for (const std::string& state : kStates) {
    Trained run(config_of(state), DType::kF32, 20);
    const std::deque<Tensor> y = run.params;
    run.optimizer.set_evaluating(true);
    for (size_t i = 0; i < y.size(); ++i) {
      std::vector<float> d(static_cast<size_t>(y[i].numel));
      run.optimizer.export_state(static_cast<int64_t>(i), 0, d.data());
      EXPECT_TRUE(run.optimizer.evaluating(static_cast<int64_t>(i)));
      for (int64_t e = 0; e < y[i].numel; ++e) {
        const double step = (1 - 0.9) / 0.9 * static_cast<double>(d[static_cast<size_t>(e)]), x = y[i].get(e) - step;
        const double bound = 0x1p-24 * (std::fabs(x) + 3 * std::fabs(step)) + 0x1p-149;
        farthest = std::max(farthest, std::fabs(run.params[i].get(e) - x) / bound);
      }
    }
  }
  figure("averages are {} of the bound from the formula at most", farthest);
  EXPECT_LE(farthest, 1);
}

// After a round trip, weights differ by at most two roundings, and states keep every bit.
TEST(Averages, GoThereAndBack) {
  for (const DType dtype : kDTypes)
    for (const std::string master : {"", "residual16", "residual8", "stochastic"}) {
      if (dtype == DType::kF32 && !master.empty()) continue;
      Trained run(config_of("dynamic8", master), dtype, 10);
      const std::vector<std::byte> before = run.everything();
      const std::deque<Tensor> y = run.params;
      run.optimizer.set_evaluating(true);
      const std::vector<std::byte> there = run.everything();
      EXPECT_NE(there, before);
      run.optimizer.set_evaluating(true);
      EXPECT_EQ(run.everything(), there) << "a second call moves nothing";
      run.optimizer.set_evaluating(false);
      double farthest = 0;
      // Units in the last place of either weight: half of one for each rounding to nearest, one for stochastic
      // rounding.
      const double unit = dtype == DType::kF32 ? 0x1p-23 : dtype == DType::kBF16 ? 0x1p-7 : 0x1p-10;
      for (size_t i = 0; i < y.size(); ++i)
        for (int64_t e = 0; e < y[i].numel; ++e) {
          const double was = y[i].get(e), way = 0.1;  // longer than any move from y to x here
          const double bound = unit * (std::fabs(was) + way) + (dtype == DType::kF16 ? 0x1p-24 : 0);
          farthest = std::max(farthest, std::fabs(run.params[i].get(e) - was) / bound);
        }
      figure("type {}, master '{}': {} units from where it was", static_cast<int>(dtype), master, farthest);
      EXPECT_LE(farthest, master == "stochastic" ? 2 : 1);
      run.step(1, 3);
    }
}

// Stochastic rounding of many switches at one step is a random walk: the squares of the moves add up. Rounding with the
// same bits each time would push every weight one way, and the sum of squares would be kPairs times as large.
TEST(Averages, OfManySwitchesAtOneStepWalkAtRandom) {
  constexpr int kPairs = 64;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    Trained run(config_of("dynamic8", "stochastic"), dtype, 10);
    const std::deque<Tensor> start = run.params;
    const auto squares = [&](const std::deque<Tensor>& from) {
      double sum = 0;
      for (size_t i = 0; i < from.size(); ++i)
        for (int64_t e = 0; e < from[i].numel; ++e) sum += std::pow(run.params[i].get(e) - from[i].get(e), 2);
      return sum;
    };
    double singles = 0;
    for (int pair = 0; pair < kPairs; ++pair) {
      const std::deque<Tensor> before = run.params;
      run.optimizer.set_evaluating(true);
      run.optimizer.set_evaluating(false);
      singles += squares(before);
    }
    const double ratio = squares(start) / singles;
    figure("type {}: {} pairs went {} times as far as independent ones, squared; the same bits: {}",
           static_cast<int>(dtype), kPairs, ratio, kPairs);
    EXPECT_NEAR(ratio, 1, 0.2);  // 17,000 weights: a standard deviation of about 1 in 90
  }
}

// Claim: bits are equal on every instruction set, number of threads and tier.
TEST(Averages, HaveTheSameBitsEverywhere) {
  const TemporaryDirectory folder;
  int64_t bytes = 0, cases = 0;
  for (const DType dtype : kDTypes)
    for (const std::string& state : kStates)
      for (const std::string master : {"", "residual16", "residual8", "stochastic"}) {
        if (dtype == DType::kF32 && !master.empty()) continue;
        std::vector<std::byte> wanted;
        for (const std::string& target : cpu_targets())
          for (const bool paged : {false, true}) {
            Config config = config_of(state, master);
            config.target = target, config.threads = paged ? 2 : 1;
            if (paged) config.memory = {.host = 32 << 10, .disk = folder.path(), .chunk = 4096};
            Trained run(config, dtype, 5);
            run.optimizer.set_evaluating(true);
            std::vector<std::byte> got = run.everything();
            run.optimizer.set_evaluating(false);
            run.step(2, 11);
            const std::vector<std::byte> after = run.everything();
            got.insert(got.end(), after.begin(), after.end());
            if (wanted.empty()) wanted = got;
            EXPECT_EQ(got, wanted) << state << ", " << master << ", " << target << (paged ? ", paged" : "");
            bytes += static_cast<int64_t>(got.size()), ++cases;
          }
      }
  figure("{} cases, {} bytes, 0 differ", cases, bytes);
}

// A disk that cannot be read stops the move before the first parameter whose state is missing; one that cannot be
// written is reported at the end. A later call continues from there.
TEST(Averages, SurviveADiskThatFails) {
  const TemporaryDirectory folder;
  for (const bool writes : {false, true}) {
    const Config config = config_of("dynamic8", writes ? "residual16" : "");
    const DType dtype = writes ? DType::kBF16 : DType::kF32;
    Trained wanted(config, dtype, 3);
    wanted.optimizer.set_evaluating(true);
    int failed = 0;
    for (int64_t at = 1; at < 40; at += 3) {
      FaultyEnv env;
      OptimizerOptions options{.rule = config.rule, .memory = {.host = 32 << 10, .disk = folder.path(), .chunk = 4096}};
      Trained other(config, dtype, 0);
      other.optimizer = OptimizerEnv::make(options, env);
      other.optimizer.add_group(
          {.hyper = config.hyper, .state = config.state, .min_quantized_numel = 100, .master = config.master});
      for (Tensor& param : other.params) other.optimizer.add_param(0, param.view());
      other.step(3, 8);
      env.arm({.call = writes ? Call::kPwrite : Call::kPread, .nth = at, .persistent = true, .error = EIO});
      try {
        other.optimizer.set_evaluating(true);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kIo) << error.what();
        ++failed;
      }
      env.disarm();
      other.optimizer.set_evaluating(true);
      EXPECT_EQ(other.everything(), wanted.everything()) << (writes ? "write " : "read ") << at;
    }
    figure("{} of 13 moves met the failure of a {}; all came to the end after it", failed, writes ? "write" : "read");
    EXPECT_GT(failed, 0);
  }
}

// A parameter of several slices with a residual, resident and through chunks.
TEST(Averages, OfManySlicesHaveTheSameBits) {
  const TemporaryDirectory folder;
  constexpr int64_t kRows = 3, kLength = 250'001;
  std::vector<std::byte> wanted;
  for (const bool paged : {false, true}) {
    Config config = config_of("dynamic8", "residual16");
    if (paged) config.memory = {.host = 128 << 10, .disk = folder.path(), .chunk = 16 << 10};
    Rng rng(5);
    Tensor param(DType::kBF16, {kRows, kLength}), grad(DType::kF32, {kRows, kLength});
    param.randomize(rng), grad.randomize(rng);
    Optimizer optimizer = make_optimizer(config);
    optimizer.add_param(0, param.view());
    const Gradient gradient = grad.gradient();
    for (int i = 0; i < 3; ++i) optimizer.step({&gradient, 1});
    const std::vector<std::byte> before = snapshot(optimizer, {&param});
    optimizer.set_evaluating(true);
    const std::vector<std::byte> got = snapshot(optimizer, {&param});
    EXPECT_NE(got, before);
    if (!paged) wanted = got;
    EXPECT_EQ(got, wanted);
  }
  figure("{} bytes alike", wanted.size());
}

TEST(Averages, GoBackByTheBetaByWhichTheyCame) {
  Trained run(config_of("fp32"), DType::kF32, 5);
  const std::deque<Tensor> y = run.params;
  run.optimizer.set_evaluating(true);
  Hyper other = config_of("fp32").hyper;
  other.beta1 = 0.5;
  run.optimizer.set_hyper(0, other);
  run.optimizer.set_evaluating(false);
  for (size_t i = 0; i < y.size(); ++i)
    for (int64_t e = 0; e < y[i].numel; ++e)
      ASSERT_NEAR(run.params[i].get(e), y[i].get(e), 0x1p-23 * std::fabs(y[i].get(e)) + 0x1p-26);
}

TEST(Averages, AreMarkedByTheGroupsBetaOrAnother) {
  Trained run(config_of("fp32"), DType::kF32, 5);
  Optimizer& optimizer = run.optimizer;
  EXPECT_EQ(optimizer.evaluating_beta1(0), 0);
  optimizer.set_evaluating(true);
  EXPECT_EQ(optimizer.evaluating_beta1(0), 0.9);
  optimizer.mark_evaluating(0, true, 0.5);
  EXPECT_EQ(optimizer.evaluating_beta1(0), 0.5);
  optimizer.mark_evaluating(0, true);
  EXPECT_EQ(optimizer.evaluating_beta1(0), 0.9);
  for (const double bad : {-0.1, 1.0, std::nan("")})
    expect_refusal([&] { optimizer.mark_evaluating(0, true, bad); }, "wanted one in (0, 1)");
  EXPECT_EQ(optimizer.evaluating_beta1(0), 0.9);
  optimizer.mark_evaluating(0, false, 0.5);
  EXPECT_EQ(optimizer.evaluating_beta1(0), 0);
}

TEST(Averages, RefuseStepsMeanwhileAndOtherRulesHaveNone) {
  Trained run(config_of("dynamic8"), DType::kF32, 1);
  run.optimizer.set_evaluating(true);
  const std::vector<std::byte> before = run.everything();
  expect_refusal([&] { run.step(1, 1); }, "parameter 0 has the weights to evaluate");
  EXPECT_EQ(run.everything(), before);
  run.optimizer.mark_evaluating(0, false);
  expect_refusal([&] { run.step(1, 1); }, "parameter 1 has the weights");

  Config adamw;
  Trained plain(adamw, DType::kF32, 1);
  const std::vector<std::byte> unmoved = plain.everything();
  plain.optimizer.set_evaluating(true);
  EXPECT_FALSE(plain.optimizer.evaluating(0));
  plain.step(0, 1);
  EXPECT_EQ(plain.everything(), unmoved);
  expect_refusal([&] { plain.optimizer.mark_evaluating(0, true); }, "wanted schedulefree");

  std::vector<Gradient> none(kSizes.size());
  std::vector<float*> out(kSizes.size());
  StepOptions options{.directions = out};
  expect_refusal([&] { run.optimizer.step(none, options); }, "states hold the learning rate");
}

TEST(Averages, BeforeAnyStepAreTheWeightsThemselves) {
  Trained run(config_of("dynamic8"), DType::kF32, 0);
  const std::deque<Tensor> before = run.params;
  run.optimizer.set_evaluating(true);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(run.params[i].data, before[i].data);
  EXPECT_TRUE(run.optimizer.evaluating(0));
}

}  // namespace
}  // namespace lowtide::testing
