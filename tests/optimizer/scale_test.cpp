// Multiplying gradients and eps by a power of two changes no bit of weights and codes: such products are exact, and so
// must be every block's scale. State in float16, or scales with a floor of their own, would fail.
#include "support/optimizer_case.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int kSteps = 12, kLeast = -100, kMost = 60;
constexpr int64_t kNumel = 600;

// Returns magnitudes from 2^-8 to 2, which stay below the limit of 2^62 even times 2^60.
std::vector<Tensor> gradients() {
  Rng rng(81);
  std::vector<Tensor> out;
  for (int step = 0; step < kSteps; ++step) {
    Tensor& g = out.emplace_back(DType::kF32, std::vector<int64_t>{kNumel});
    for (int64_t i = 0; i < kNumel; ++i)
      g.set(i, (rng.next() & 1 ? 1 : -1) * (1.0 / 256 + static_cast<double>(rng.next() % 4096) / 2100));
  }
  return out;
}

// Returns weights and codes after steps with gradients and eps times 2^k. SGD has no eps, so its lr is divided.
std::vector<std::byte> after(Config config, const std::vector<Tensor>& gradients, int k, bool with_eps = true) {
  config.hyper.eps = with_eps ? std::ldexp(1.0, k - 20) : std::ldexp(1.0, -20);
  if (config.rule == "sgd") config.hyper.lr = std::ldexp(config.hyper.lr, -k);
  Rng rng(82);
  Tensor p(DType::kF32, {kNumel}), g(DType::kF32, {kNumel});
  p.randomize(rng);
  Optimizer optimizer = make_optimizer(config, {&p});
  for (const Tensor& each : gradients) {
    for (int64_t i = 0; i < kNumel; ++i) g.set(i, std::ldexp(each.get(i), k));
    take_step(optimizer, g);
  }
  std::vector<std::byte> out = p.data;
  int number = 0;
  for (const StateView& state : optimizer.state(0)) {
    std::vector<std::byte> codes(static_cast<size_t>(state.numel * state.code_bits / 8));
    std::vector<float> scales(static_cast<size_t>(state.rows * state.scales_per_row));
    optimizer.read_state(0, number++, codes.data(), scales.data());
    if (state.scales_per_row) out.insert(out.end(), codes.begin(), codes.end());  // other formats store values
  }
  return out;
}

// The smallest numbers must be normal in float32, 2^-126 or more. Second moments are squares: the least is 0.001 *
// 2^-16 * 2^2k times the smallest entry of a format, 2^-22. Rules with only first moments: 0.01 * 2^-8 * 2^k times
// 2^-16, the fraction of a step that stochastic rounding resolves.
int least_of(const std::string& rule) { return rule == "lion" || rule == "sgd" || rule == "lars" ? -90 : -39; }

TEST(Scale, PowersOfTwoChangeNoBit) {
  const std::vector<Tensor> g = gradients();
  int64_t runs = 0, failing = 0, controls = 0, caught = 0;
  for (const std::string& rule : rule_names()) {
    Config config{.rule = rule, .hyper = default_hyper(rule)};
    config.hyper.lr = 0.01, config.hyper.momentum = 0.9, config.hyper.weight_decay = 0, config.hyper.d0 = 1;
    int highest_least = kLeast;
    for (const std::string& state : codec_names_of(rule, config.hyper)) {
      config.state = state;
      const std::vector<std::byte> wanted = after(config, g, 0);
      const auto same = [&](int k) { return after(config, g, k) == wanted; };
      int least = 0;
      while (least > kLeast && same(least - 1)) --least;
      for (int k = 1; k <= kMost; ++k) failing += !same(k), ++runs;
      runs -= least_of(rule), failing += std::max(0, least - least_of(rule));
      EXPECT_LE(least, least_of(rule)) << rule << " " << state;
      highest_least = std::max(highest_least, least);
      if (rule != "lion" && rule != "sgd") ++controls, caught += after(config, g, -20, false) != wanted;
    }
    figure("{} gradients times 2^{} to 2^{}: the same weights in all formats", rule, highest_least, kMost);
  }
  EXPECT_EQ(failing, 0);
  EXPECT_GT(caught, controls / 2) << "control: eps that does not follow changes weights";
  figure("scaled runs: {}, failing {}; {} of {} runs with another eps differ", runs, failing, caught, controls);
}

}  // namespace
}  // namespace lowtide::testing
