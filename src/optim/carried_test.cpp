// Claims: numbers that rules carry beside their states have the plain loop's bits, in a fraction of its time, and files
// keep them.
#include "optim/carried.h"

#include "backend/catalog.h"
#include "optim/hyper.h"
#include "support/checkpoint_case.h"
#include "support/optimizer_case.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {
#include "portable/portable.h"

const int kNadam = effective_rule(find_rule("adamw"), [] {
  Hyper hyper = default_hyper("adamw");
  hyper.nesterov = true;
  return hyper;
}());
const int kScheduleFree = find_rule("schedulefree");

Hyper hyper_of(double beta1, double momentum_decay) {
  Hyper hyper = default_hyper("adamw");
  hyper.nesterov = true;
  hyper.beta1 = beta1;
  hyper.momentum_decay = momentum_decay;
  return hyper;
}

double product_of(const Hyper& hyper, int64_t steps) { return carried_as_now(kNadam, hyper, steps).of[0]; }

double mu(const Hyper& hyper, int64_t t) {
  return hyper.beta1 * (1 - 0.5 * std::pow(0.96, static_cast<double>(t) * hyper.momentum_decay));
}

// The definition, step by step.
double plain_product(const Hyper& hyper, int64_t steps) {
  double product = 1;
  for (int64_t t = 1; t <= steps && product > 0x1p-60; ++t) product *= mu(hyper, t);
  return product;
}

TEST(MuProduct, HasTheBitsOfThePlainLoop) {
  const unsigned seed = random_seed();
  Rng random = seeded("products of mu", seed);
  int cases = 0;
  const auto compare = [&](double beta1, double decay, int64_t steps) {
    const Hyper hyper = hyper_of(beta1, decay);
    EXPECT_EQ(product_of(hyper, steps), plain_product(hyper, steps))
        << "beta1 " << beta1 << ", momentum_decay " << decay << ", " << steps << " steps, seed " << seed;
    ++cases;
  };
  for (const double beta1 : {0.0, 0.5, 0.9, 1 - 1e-4, 1 - 1e-9, std::nextafter(1.0, 0.0)})
    for (const double decay : {0.0, 1e-9, 4e-3, 0.3, 1.0, 40.0, 999.0, 1000.0, 1001.0, 1e9, 1e300})
      for (const int64_t steps : {0, 1, 2, 25, 26, 1000, 3000}) compare(beta1, decay, steps);
  for (int i = 0; i < 500; ++i) {
    const double beta1 = 1 - std::pow(10, -9 * random.uniform()), decay = std::pow(10, 6 * random.uniform() - 3);
    compare(beta1, decay, random.below(5000));
  }
  compare(1 - 1e-9, 100, int64_t{1} << 19);  // most steps multiply by beta1 alone
  figure("{} products, 0 differ", cases);
}

TEST(Carried, BelongsToTheRulesThatNameThem) {
  std::map<std::string, std::vector<std::string>> with;
  for (const RuleInfo& rule : rules())
    if (!rule.carried_names.empty()) with[rule.name] = {rule.carried_names.begin(), rule.carried_names.end()};
  const std::map<std::string, std::vector<std::string>> wanted = {
      {"adam_nesterov", {"mu_product"}},
      {"adamw_nesterov", {"mu_product"}},
      {"prodigy", {"d", "d_max", "d_numerator", "k"}},
      {"schedulefree", {"weight_sum", "lr_max", "switches"}}};
  EXPECT_EQ(with, wanted);
}

TEST(MuProduct, GoesOnFromWhereItIs) {
  const Hyper then = hyper_of(0.95, 4e-3), now = hyper_of(0.7, 4e-3);
  Parameter param{ParamSpec{}};
  param.rule = kNadam;
  double wanted = 1;
  for (param.steps = 0; param.steps < 20; ++param.steps) {
    const Hyper& hyper = param.steps < 10 ? then : now;
    param.carried = next_carried(param, hyper);
    wanted *= mu(hyper, param.steps + 1);
    EXPECT_EQ(param.carried.of[0], wanted) << param.steps;
  }
  param.carried.of[0] = NadamBase::kNoProduct;
  EXPECT_EQ(next_carried(param, now).of[0], NadamBase::kNoProduct);
}

// The loop of the package schedulefree over a group: k, lr_max and weight_sum.
struct PlainWeights {
  double sum = 0, most = -1, c = 0;
  void step(const Hyper& h, int64_t k) {
    const double t = static_cast<double>(k + 1);
    const double lr = h.lr * (static_cast<double>(k) < h.warmup_steps ? t / h.warmup_steps : 1);
    most = std::max(most, lr);
    const double weight = std::pow(t, h.r) * std::pow(most, h.weight_lr_power);
    sum += weight;
    c = sum > 0 ? weight / sum : 0;
  }
};

Hyper schedule_free(double warmup, double r, double power) {
  Hyper hyper = default_hyper("schedulefree");
  hyper.warmup_steps = warmup, hyper.r = r, hyper.weight_lr_power = power;
  return hyper;
}

// With rates that rise and fall, the sum and the largest rate equal the loop's, and the arguments give c to a rounding.
TEST(ScheduleFreeWeights, AreThoseOfAPlainLoop) {
  double farthest = 0;
  for (const double warmup : {0.0, 1.0, 7.0, 200.0})
    for (const double r : {0.0, 0.5, 2.0})
      for (const double power : {0.0, 1.0, 2.0}) {
        Hyper hyper = schedule_free(warmup, r, power);
        PlainWeights plain;
        Parameter param{ParamSpec{}};
        param.rule = kScheduleFree;
        for (param.steps = 0; param.steps < 300; ++param.steps) {
          hyper.lr = 2.5e-3 * (param.steps < 100 ? 1 : param.steps < 150 ? 3 : 0.2);
          plain.step(hyper, param.steps);
          RuleInput input = rule_input(hyper, param.steps + 1, false);
          std::copy_n(param.carried.of, kMaxCarried, input.carried);
          const ScheduleFreeArgs args = AdamWScheduleFree::args(input);
          param.carried = next_carried(param, hyper);
          EXPECT_EQ(param.carried.of[0], plain.sum);
          EXPECT_EQ(param.carried.of[1], plain.most);
          farthest = std::max(farthest, std::abs(args.from_d - plain.c) / plain.c);
        }
      }
  figure("c is farther from the loop's by {} of it at most", farthest);
  EXPECT_LE(farthest, 1.01 * 0x1p-24);
}

// Without carried numbers all steps count as alike: a closed form replaces the loop after the first thousands.
TEST(ScheduleFreeWeights, OfStepsThatWereAlikeNeedNoLoop) {
  double farthest = 0;
  for (const double warmup : {0.0, 300.0, 6000.0})
    for (const double r : {0.0, 0.3, 1.0, 2.0, 7.0}) {
      const Hyper hyper = schedule_free(warmup, r, 2);
      PlainWeights plain;
      for (int64_t k = 0; k < 50'000; ++k) {
        plain.step(hyper, k);
        if (k != 0 && k != 10 && k != 4095 && k != 4096 && k != 9'999 && k != 49'999) continue;
        const Carried found = carried_as_now(kScheduleFree, hyper, k + 1);
        EXPECT_EQ(found.of[1], plain.most);
        farthest = std::max(farthest, std::abs(found.of[0] / plain.sum - 1));
      }
    }
  figure("farthest from the loop: {}", farthest);
  EXPECT_LE(farthest, 50'000 * 0x1p-53 + 1e-12) << "the roundings of the loop, and the terms left out";
  const Carried most = carried_as_now(kScheduleFree, schedule_free(0, 0, 2), int64_t{1} << 53);
  EXPECT_NEAR(most.of[0] / (0x1p53 * 2.5e-3 * 2.5e-3), 1, 1e-9) << "as many steps as there can be take no time";
  EXPECT_EQ(carried_as_now(kScheduleFree, schedule_free(5, 1, 2), 0).of[0], 0);
}

TEST(Carried, OfAnOptimizerIsSetAndRead) {
  std::vector<float> values(64);
  Optimizer optimizer({.rule = "adamw"});
  const Hyper hyper = hyper_of(0.9, 4e-3);
  const int group = optimizer.add_group({.hyper = hyper});
  const int64_t param = optimizer.add_param(group, {values.data(), DType::kF32, {64}, {}});
  EXPECT_EQ(carried_of(optimizer, param).of[0], 1);
  optimizer.set_steps(param, 5);
  EXPECT_EQ(carried_of(optimizer, param).of[0], plain_product(hyper, 5));
  set_carried(optimizer, param, {{0.25}});
  EXPECT_EQ(carried_of(optimizer, param).of[0], 0.25);
  for (const double bad : {-0.5, -1.0, 1.5, std::numeric_limits<double>::quiet_NaN()})
    expect_refusal([&] { set_carried(optimizer, param, {{bad}}); }, "for parameter 0, wanted a number from 0 to 1");
  EXPECT_EQ(carried_of(optimizer, param).of[0], 0.25);

  Optimizer other({.rule = "lion"});
  const int64_t lion = other.add_param(other.add_group({}), {values.data(), DType::kF32, {64}, {}});
  EXPECT_TRUE(carried_names(other, lion).empty());
  set_carried(other, lion, {{0.5}});
  EXPECT_FALSE(carried_of(other, lion).known());
}

// Step t of a run whose options change from step to step. Its gradients agree, so that Prodigy's d grows.
void set_options(Optimizer& optimizer, const Config& config, int t) {
  Hyper hyper = config.hyper;
  hyper.lr *= std::array{1.0, 3.0, 0.2}[static_cast<size_t>(t % 3)];
  hyper.beta1 = t % 2 ? 0.8 : 0.95;
  optimizer.set_hyper(0, hyper);
}
void take_steps(Optimizer& optimizer, const Config& config, int from, int to) {
  for (int t = from; t < to; ++t) {
    set_options(optimizer, config, t);
    Rng rng(static_cast<uint64_t>(60 + t % 2));
    Tensor grad(DType::kF32, {4, 300});
    grad.randomize(rng);
    take_step(optimizer, grad);
  }
}
void evaluate(Optimizer& optimizer) { optimizer.set_evaluating(true), optimizer.set_evaluating(false); }

// Every rule that carries numbers, and Schedule-Free also with other weights of its average.
std::vector<Config> carrying() {
  std::vector<Config> all;
  for (const RuleInfo& rule : rules()) {
    if (rule.carried_names.empty()) continue;
    Config& config = all.emplace_back(Config{.rule = rule_info(rule.family).name});
    config.hyper = default_hyper(config.rule);
    if (!rule.runs_for(config.hyper)) config.hyper.nesterov = true, config.hyper.momentum_decay = 100;  // mu = beta1
  }
  for (const double power : {0.5, 1.0}) all.push_back({.rule = "schedulefree", .hyper = schedule_free(5, 1, power)});
  return all;
}

TEST(Carried, AResumedRunHasTheBitsOfOneThatWentOn) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("c");
  int runs = 0;
  for (Config config : carrying())
    for (const char* const state : {"fp32", "dynamic8"})
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        config.state = state, config.master = dtype == DType::kF32 ? "" : "stochastic";
        Rng rng(50);
        Tensor param(dtype, {4, 300});
        param.randomize(rng);
        Optimizer run = make_optimizer(config, {&param});
        take_steps(run, config, 0, 7);
        evaluate(run);
        run.save(path);
        Tensor same = param, other = param;
        Optimizer resumed = make_optimizer(config, {&same}), forgetful = make_optimizer(config, {&other});
        resumed.load(path), forgetful.load(path);
        forgetful.set_steps(0, 7);
        for (Optimizer* const each : {&run, &resumed, &forgetful}) {
          set_options(*each, config, 6);
          evaluate(*each);
          take_steps(*each, config, 7, 12);
        }
        const std::vector<std::byte> wanted = snapshot(run, {&param});
        EXPECT_TRUE(snapshot(resumed, {&same}) == wanted) << config.rule << ", " << state;
        EXPECT_TRUE(snapshot(forgetful, {&other}) != wanted) << "control: " << config.rule << ", " << state;
        ++runs;
      }
  figure("{} runs resumed from files, 0 bits differ", runs);
}

TEST(Carried, AFileWithWrongNumbersChangesNothing) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("c");
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  int refused = 0;
  for (const Config& config : carrying()) {
    Tensor param(DType::kF32, {4, 300});
    Optimizer run = make_optimizer(config, {&param});
    take_steps(run, config, 0, 3);
    const std::vector<std::byte> before = snapshot(run, {&param});
    const Carried had = carried_of(run, 0);
    run.save(path);
    const Content good = load(path);
    std::vector<std::vector<double>> wrong = {{}, std::vector<double>(good.description.params[0].carried.size() + 1)};
    for (size_t k = 0; k < good.description.params[0].carried.size(); ++k)
      for (const double number : {kNan, -std::numeric_limits<double>::infinity()}) {
        wrong.push_back(good.description.params[0].carried);
        wrong.back()[k] = number;
        if (k) wrong.push_back(wrong.back()), wrong.back()[0] = kCarriedUnknown;
      }
    for (const std::vector<double>& numbers : wrong) {
      Content bad = good;
      bad.description.params[0].carried = numbers;
      bad.save(path);
      expect_refusal([&] { run.load(path); }, "parameter 0");
      EXPECT_EQ(snapshot(run, {&param}), before);
      EXPECT_EQ(carried_of(run, 0), had);
      ++refused;
    }
  }
  figure("{} files with wrong numbers refused", refused);
}

TEST(Carried, OneEstimateServesAllGroups) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("c");
  Tensor a(DType::kF32, {300}), b(DType::kF32, {300});
  Hyper h = default_hyper("prodigy");
  Optimizer optimizer = make_optimizer({.rule = "prodigy", .hyper = h}, {&a});
  const int other = optimizer.add_group({.hyper = h});
  optimizer.add_param(other, b.view());
  const Gradient gradients[] = {a.gradient(), b.gradient()};
  h.lr = 0.5;
  optimizer.set_hyper(other, h);
  optimizer.step(gradients);
  h.d_coef = 2;
  optimizer.set_hyper(other, h);
  expect_refusal([&] { optimizer.step(gradients); }, "got d_coef=2 in group 1 and d_coef=1 in group 0 of prodigy");
  optimizer.save(path);
  Content two = load(path);
  two.description.params[0].carried = {1e-3, 1e-3, 0, 4};
  two.save(path);
  expect_refusal([&] { optimizer.load(path); }, "parameter 1 has another estimate in the checkpoint");
  set_carried(optimizer, 0, {{1e-3, 1e-3, 0, 4, 0}});
  h.d_coef = 1;
  optimizer.set_hyper(other, h);
  expect_refusal([&] { optimizer.step(gradients); }, "load the state of all parameters from one run");
  expect_refusal([&] { optimizer.save(path); }, "load the state of all parameters from one run");
}

}  // namespace
}  // namespace lowtide::testing
