// NAdam's product of mu: the bits of the plain loop, in a fraction of its time; arguments that are put right for it.
#include "optim/mu_product.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "backend/catalog.h"
#include "support/message_of.h"
#include "support/random.h"

namespace lowtide {
namespace {
#include "portable/portable.h"

using testing::message_of;

Hyper hyper_of(double beta1, double momentum_decay) {
  Hyper hyper = default_hyper("adamw");
  hyper.nesterov = true;
  hyper.beta1 = beta1;
  hyper.momentum_decay = momentum_decay;
  return hyper;
}

double mu(const Hyper& hyper, int64_t t) {
  return hyper.beta1 * (1 - 0.5 * std::pow(0.96, static_cast<double>(t) * hyper.momentum_decay));
}

// As the definition has it, step by step.
double plain_product(const Hyper& hyper, int64_t steps) {
  double product = 1;
  for (int64_t t = 1; t <= steps && product > 0x1p-60; ++t) product *= mu(hyper, t);
  return product;
}

TEST(MuProduct, HasTheBitsOfThePlainLoop) {
  const unsigned seed = testing::random_seed();
  testing::Rng random = testing::seeded("products of mu", seed);
  int cases = 0;
  const auto compare = [&](double beta1, double decay, int64_t steps) {
    const Hyper hyper = hyper_of(beta1, decay);
    EXPECT_EQ(mu_product_of(hyper, steps), plain_product(hyper, steps))
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
  compare(1 - 1e-9, 100, int64_t{1} << 19);  // most of them by a multiplication with beta1 alone
  std::printf("%d products, 0 differ\n", cases);
}

TEST(MuProduct, BelongsToTheRulesOfNadamAlone) {
  std::set<std::string> with;
  for (size_t rule = 0; rule < rules().size(); ++rule)
    if (has_mu_product(static_cast<int>(rule))) with.insert(rules()[rule].name);
  EXPECT_EQ(with, (std::set<std::string>{"adam_nesterov", "adamw_nesterov"}));
}

TEST(MuProduct, GoesOnFromWhereItIs) {
  const Hyper then = hyper_of(0.95, 4e-3), now = hyper_of(0.7, 4e-3);
  Parameter param{ParamSpec{}};
  double wanted = 1;
  for (param.steps = 0; param.steps < 20; ++param.steps) {
    const Hyper& hyper = param.steps < 10 ? then : now;
    const double next = next_mu_product(param, hyper);
    wanted *= mu(hyper, param.steps + 1);
    EXPECT_EQ(next, wanted) << param.steps;
    param.mu_product = next;
  }
  param.mu_product = kNoMuProduct;
  EXPECT_EQ(next_mu_product(param, now), kNoMuProduct);
}

// Arguments of a step, corrected, are those of the formula with the other product. They are float32 before and after
// the correction: each rounds by 2^-24.
TEST(MuProduct, CorrectsTheArgumentsOfAStep) {
  double farthest = 0;
  for (const double beta1 : {0.5, 0.9, 0.99})
    for (const double before : {1.0, 0.7, 1e-3})
      for (const int64_t t : {1, 2, 7, 40}) {
        Hyper hyper = hyper_of(beta1, 4e-3);
        RuleInput input;
        input.lr = hyper.lr, input.beta1 = beta1, input.beta2 = hyper.beta2, input.eps = hyper.eps;
        input.momentum_decay = hyper.momentum_decay, input.weight_decay = hyper.weight_decay;
        input.t = static_cast<double>(t);
        const NadamArgs made = NadamBase::args(input);
        NadamArgs args = made;
        correct_arguments(hyper, t, before, reinterpret_cast<std::byte*>(&args));
        const double product = before * mu(hyper, t);
        const double from_m = hyper.lr * mu(hyper, t + 1) / (1 - product * mu(hyper, t + 1));
        const double from_g = hyper.lr * (1 - mu(hyper, t)) / (1 - product);
        farthest = std::max({farthest, std::abs(args.from_m / from_m - 1), std::abs(args.from_g / from_g - 1)});
        EXPECT_EQ(args.l2, made.l2);
        EXPECT_EQ(args.inverse_sqrt_bias, made.inverse_sqrt_bias);

        NadamArgs same = made;
        correct_arguments(hyper, t, mu_product_of(hyper, t - 1), reinterpret_cast<std::byte*>(&same));
        EXPECT_EQ(std::memcmp(&same, &made, sizeof made), 0) << "the product as it is changes no bit";
      }
  std::printf("farthest from the formula: %.2g\n", farthest);
  EXPECT_LE(farthest, 2.1 * 0x1p-24);
}

TEST(MuProduct, OfAnOptimizerIsSetAndRead) {
  std::vector<float> values(64);
  Optimizer optimizer({.rule = "adamw"});
  const Hyper hyper = hyper_of(0.9, 4e-3);
  const int group = optimizer.add_group({.hyper = hyper});
  const int64_t param = optimizer.add_param(group, {values.data(), DType::kF32, {64}, {}});
  EXPECT_EQ(mu_product(optimizer, param), 1);
  optimizer.set_steps(param, 5);
  EXPECT_EQ(mu_product(optimizer, param), plain_product(hyper, 5));
  set_mu_product(optimizer, param, 0.25);
  EXPECT_EQ(mu_product(optimizer, param), 0.25);
  for (const double bad : {0.0, -1.0, 1.5, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_NE(
        message_of(ErrorKind::kInvalidArgument, [&] { set_mu_product(optimizer, param, bad); }).find("wanted above 0"),
        std::string::npos);
  EXPECT_EQ(mu_product(optimizer, param), 0.25);

  Optimizer other({.rule = "lion"});
  const int64_t lion = other.add_param(other.add_group({}), {values.data(), DType::kF32, {64}, {}});
  EXPECT_EQ(mu_product(other, lion), kAsNow);
  set_mu_product(other, lion, 0.5);
  EXPECT_EQ(mu_product(other, lion), kAsNow);
}

}  // namespace
}  // namespace lowtide
