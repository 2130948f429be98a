// States follow their true averages, which errors of a format alone do not show and loss curves hide.
#include "support/optimizer_case.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

Optimizer adam(const std::string& state, const std::string& rounding, double beta2, uint64_t seed,
               bool amsgrad = false) {
  OptimizerOptions options{.rule = "adam", .threads = 1, .seed = seed};
  Optimizer optimizer(options);
  GroupOptions group;
  group.hyper.amsgrad = amsgrad;
  group.state = state, group.rounding = rounding, group.min_quantized_numel = 0;
  group.hyper.lr = 1e-3, group.hyper.beta2 = beta2;
  optimizer.add_group(group);
  return optimizer;
}

std::vector<float> state_of(const Optimizer& optimizer, int k, int64_t numel) {
  std::vector<float> values(static_cast<size_t>(numel));
  optimizer.export_state(0, k, values.data());
  return values;
}
std::vector<float> second_moments(const Optimizer& optimizer, int64_t numel) { return state_of(optimizer, 1, numel); }

// 5000 steps without gradients at beta2 = 0.999 leave 0.67 % of a second moment. One coordinate of every block keeps
// its gradient and so the scale. Rounded to nearest, all others would stay where they are: 149 times too large.
//
// A coordinate's ratio to the exact value scatters (sd about 1, measured); the mean over 64 blocks scatters by 1 %.
// float8's smallest second moment is 2e-6 of the largest, and smaller ones count as that; so its figure is the ratio of
// the sums.
TEST(Average, SecondMomentsDecayAsTheyShould) {
  constexpr int64_t kBlocks = 64, kNumel = kBlocks * 256;
  constexpr int kSteps = 5000;
  const double left = std::pow(0.999, kSteps);
  struct Case {
    const char *state, *rounding;
  };
  for (const Case& c : {Case{"dynamic8", "auto"},
                        {"float8", "auto"},
                        {"bf16", "auto"},
                        {"fp32", "auto"},
                        {"dynamic8", "nearest"},
                        {"bf16", "nearest"}}) {
    auto rng = Rng(80);
    Tensor p(DType::kF32, {kBlocks, 256}), g(DType::kF32, {kBlocks, 256});
    std::vector<float> v(static_cast<size_t>(kNumel));
    for (int64_t i = 0; i < kNumel; ++i) {
      v[static_cast<size_t>(i)] = i % 256 ? static_cast<float>(std::pow(10, -4 * rng.uniform())) : 1;
      g.set(i, i % 256 ? 0 : 1);
    }
    Optimizer optimizer = adam(c.state, c.rounding, 0.999, 5);
    optimizer.add_param(0, p.view());
    optimizer.allocate_state(0);
    optimizer.import_state(0, 1, v.data());
    optimizer.set_steps(0, 10000);  // long after the initial correction
    const std::vector<float> begin = second_moments(optimizer, kNumel);
    for (int step = 0; step < kSteps; ++step) take_step(optimizer, g);
    const std::vector<float> end = second_moments(optimizer, kNumel);
    double ratios = 0, sum = 0, exact = 0;
    for (size_t i = 0; i < end.size(); ++i) {
      if (i % 256 == 0) continue;
      ratios += end[i] / (begin[i] * left), sum += double{end[i]}, exact += begin[i] * left;
    }
    const double mean = ratios / static_cast<double>(kNumel - kBlocks), of_sums = sum / exact;
    figure("{} {}: after {} steps without gradients v / exact: mean {}, of sums {}", c.state, c.rounding, kSteps, mean,
           of_sums);
    if (std::string(c.rounding) == "nearest") {
      EXPECT_GT(mean, 50) << "control";
    } else {
      EXPECT_NEAR(std::string(c.state) == "float8" ? of_sums : mean, 1, 0.05) << c.state;
    }
  }
}

// Returns normal numbers by the Box-Muller method, with which the bounds and figures below were measured.
double noise(Rng& rng) {
  const double radius = std::sqrt(-2 * std::log(1 - rng.uniform()));
  return radius * std::cos(6.283185307179586 * rng.uniform());
}

// Returns the gradients of all steps: magnitudes four decades apart, or a spike in every block every 50 steps.
std::vector<float> noisy_gradients(bool spikes, int steps, int64_t numel) {
  auto rng = Rng(81);
  std::vector<double> size(static_cast<size_t>(numel), 1);
  if (!spikes)
    for (double& s : size) s = std::pow(10, -4 * rng.uniform());
  std::vector<float> all;
  all.reserve(static_cast<size_t>(steps * numel));
  for (int step = 1; step <= steps; ++step) {
    for (const double s : size) all.push_back(static_cast<float>(s * noise(rng)));
    if (spikes && step % 50 == 0)
      for (int64_t b = 0; b < numel; b += 256) all[all.size() - static_cast<size_t>(numel - b - rng.below(256))] = 1e4f;
  }
  return all;
}

// The largest |update| / lr from step 20 on, of exact Adam and of quantized states on the same gradients. First:
// neighbours in a block have gradients four decades apart. Second: every 50 steps one coordinate of a block has a
// gradient of 10^4, which hides the others. 8-bit states stay within 3 times Adam's update; 4-bit states do not (4.5 at
// most, measured), because one step of their m is as large as most of its values.
TEST(Average, NoUpdateIsMuchLargerThanAdams) {
  constexpr int64_t kNumel = 16 * 256;
  constexpr int kSteps = 1000;
  for (const bool spikes : {false, true}) {
    const std::vector<float> gradients = noisy_gradients(spikes, kSteps, kNumel);
    for (const double beta2 : {0.999, 0.95}) {
      double exact = 0;
      for (const char* state : {"fp32", "dynamic8", "float8", "bf16", "dynamic4"}) {
        Tensor p(DType::kF32, {16, 256}), before = p;
        Optimizer optimizer = adam(state, "auto", beta2, 6);
        optimizer.add_param(0, p.view());
        double largest = 0;
        for (int step = 1; step <= kSteps; ++step) {
          before = p;
          const Gradient gradient{&gradients[static_cast<size_t>((step - 1) * kNumel)], DType::kF32, nullptr};
          optimizer.step({&gradient, 1});
          if (step < 20) continue;
          for (int64_t i = 0; i < kNumel; ++i)
            largest = std::max(largest, std::fabs(double{p.get(i)} - before.get(i)) / 1e-3);
        }
        if (std::string(state) == "fp32") exact = largest;
        figure("{}, beta2 {}, {}: largest update / lr {}, {} of exact Adam's",
               spikes ? "spikes of 1e4" : "four decades ", beta2, state, largest, largest / exact);
        const bool four_bits = codec_info(find_codec(state)).has_pairs();
        EXPECT_LE(largest, (four_bits ? 6 : 3) * exact) << state;
      }
    }
  }
}

// AMSGrad's maximum follows the stored second moments over thousands of noisy steps: an upward rounding stays, but the
// next rounding starts above it, so together they add at most a whole code (twice the error of half a code). Stored
// second moments scatter by their own rounding, so their maximum exceeds the exact one; the test prints that.
TEST(Average, RunningMaximaAreThoseOfTheirMoments) {
  constexpr int64_t kNumel = 4 * 256;
  for (const char* state : {"fp32", "bf16", "dynamic8", "float8", "dynamic4"}) {
    auto rng = Rng(82);
    Tensor p(DType::kF32, {4, 256}), g(DType::kF32, {4, 256});
    Optimizer optimizer = adam(state, state == std::string("dynamic4") ? "auto" : "stochastic", 0.99, 7, true);
    optimizer.add_param(0, p.view());
    std::vector<double> exact(static_cast<size_t>(kNumel)), exact_most = exact, most = exact;
    for (int step = 1; step <= 4000; ++step) {
      for (int64_t i = 0; i < kNumel; ++i) g.set(i, rng.normal());
      take_step(optimizer, g);
      const std::vector<float> v = second_moments(optimizer, kNumel);
      for (size_t i = 0; i < v.size(); ++i) {
        const double x = g.get(static_cast<int64_t>(i));
        exact[i] = 0.99 * exact[i] + 0.01 * x * x;
        exact_most[i] = std::max(exact_most[i], exact[i]), most[i] = std::max(most[i], double{v[i]});
      }
    }
    const std::vector<float> kept = state_of(optimizer, 2, kNumel);
    double sum = 0, of_stored = 0, of_exact = 0;
    for (size_t i = 0; i < kept.size(); ++i) sum += double{kept[i]}, of_stored += most[i], of_exact += exact_most[i];
    figure("{}: AMSGrad's maximum {} of the largest stored moments, {} of exact ones", state, sum / of_stored,
           sum / of_exact);
    const double error = codec_info(find_codec(state)).error;
    EXPECT_LE(sum / of_stored, 1 + 2 * error + 1e-6) << state;
    EXPECT_GE(sum / of_stored, 1 - error - 1e-6) << state;
  }
}

// In our own formats, parameters whose gradients differ only in sign move alike. (dynamic8's map is bitsandbytes'.)
TEST(Average, SignsAreAlike) {
  constexpr int64_t kNumel = 16 * 256;
  constexpr int kSteps = 100;
  double exact = 0;
  for (const char* state : {"fp32", "float8", "dynamic4"}) {
    double moved[2];
    for (const int sign : {0, 1}) {
      Tensor p(DType::kF32, {16, 256}), g(DType::kF32, {16, 256});
      for (int64_t i = 0; i < kNumel; ++i) g.set(i, sign ? 1 : -1);
      Optimizer optimizer = adam(state, "auto", 0.999, 6);
      optimizer.add_param(0, p.view());
      for (int step = 0; step < kSteps; ++step) take_step(optimizer, g);
      moved[sign] = 0;
      for (int64_t i = 0; i < kNumel; ++i) moved[sign] += p.get(i) / double{kNumel} / 1e-3;
    }
    if (std::string(state) == "fp32") exact = moved[0];
    figure("{}: moved by {} and {} lr in {} steps", state, moved[0], moved[1], kSteps);
    // The mean over 4096 stochastically rounded second moments is off by less than 1 %.
    EXPECT_NEAR(moved[0] / exact, 1, 0.01) << state;
    EXPECT_NEAR(moved[1] / exact, -1, 0.01) << state;
  }
}

// A stored second moment is 0 if and only if all its gradients were 0, even with values ten decades apart in a block.
TEST(Average, SecondMomentsAreZeroOnlyWhereGradientsWere) {
  constexpr int64_t kNumel = 16 * 256;
  int64_t checked = 0, zeros = 0;
  for (const char* state : {"dynamic8", "float8", "bf16"})
    for (const char* rounding : {"auto", "stochastic", "nearest"}) {
      if (std::string(state) == "float8" && std::string(rounding) == "nearest") continue;
      auto rng = Rng(82);
      Tensor p(DType::kF32, {16, 256}), g(DType::kF32, {16, 256});
      std::vector<bool> never(static_cast<size_t>(kNumel), true);
      Optimizer optimizer = adam(state, rounding, 0.999, 7);
      optimizer.add_param(0, p.view());
      for (int step = 0; step < 300; ++step) {
        for (int64_t i = 0; i < kNumel; ++i) {
          const bool has = i % 5 != 0 && (i % 7 != 0 || step == 3);
          g.set(i, has ? rng.over_binades(-20, 14) : 0);
          if (has) never[static_cast<size_t>(i)] = false;
        }
        take_step(optimizer, g);
      }
      const std::vector<float> v = second_moments(optimizer, kNumel);
      for (size_t i = 0; i < v.size(); ++i, ++checked) {
        ASSERT_EQ(v[i] == 0, never[i]) << state << " " << rounding << " " << i;
        zeros += never[i];
      }
    }
  figure("{} second moments, {} of them 0, as they should be", checked, zeros);
}

}  // namespace
}  // namespace lowtide::testing
