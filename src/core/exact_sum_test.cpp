#include "core/exact_sum.h"

#include <random>

#include "support/test.h"

namespace lowtide::testing {
namespace {

struct Term {
  float x;
  int exponent;
};

double sum_of(const std::vector<Term>& terms) {
  ExactSum sum;
  for (const Term& term : terms) sum.add(term.x, term.exponent);
  return sum.value();
}

// The terms span so many exponents that a sum in double would depend on their order.
TEST(ExactSum, DoesNotDependOnTheOrderOfItsTerms) {
  std::mt19937 rng(50);
  int64_t orders = 0, differing = 0, differing_in_double = 0;
  double worst = 0;
  for (int round = 0; round < 200; ++round) {
    const int spread = round % 2 ? 250 : 30;
    std::vector<Term> terms;
    for (int i = 0; i < 500; ++i) {
      const float x = std::ldexp(1.f + std::generate_canonical<float, 24>(rng), static_cast<int>(rng() % 100) - 50);
      terms.push_back({rng() % 20 ? x : std::ldexp(x, -130), static_cast<int>(rng() % (2 * spread)) - spread});
    }
    const auto in_double = [&] {
      double sum = 0;
      for (const Term& term : terms) sum += std::ldexp(double{term.x}, term.exponent);
      return sum;
    };
    const double first = sum_of(terms), plain = in_double();
    worst = std::max(worst, std::fabs(first / plain - 1));
    for (int order = 0; order < 5; ++order, ++orders) {
      std::shuffle(terms.begin(), terms.end(), rng);
      differing += sum_of(terms) != first;
      differing_in_double += in_double() != plain;
    }
  }
  EXPECT_EQ(differing, 0);
  EXPECT_GT(differing_in_double, 0) << "control";
  EXPECT_LT(worst, 500 * 0x1p-52);
  figure("{} orders of 500 terms, {} sums differ (in double {}); {} from the double's", orders, differing,
         differing_in_double, worst);
}

// However terms that cancel are split over two sums, the difference has the same bits. That of the rounded sums does
// not.
TEST(ExactSum, DifferencesDependOnNothingElse) {
  std::mt19937 rng(51);
  int64_t differing = 0, differing_when_rounded = 0, negative = 0;
  for (int round = 0; round < 2000; ++round) {
    ExactSum more, less;
    const auto add_some = [&](ExactSum& to) {
      to.add(std::generate_canonical<float, 24>(rng), static_cast<int>(rng() % 200) - 100);
    };
    for (int i = 0; i < 9; ++i) add_some(more), add_some(less);
    const double first = more.minus(less), rounded = more.value() - less.value();
    negative += first < 0;
    EXPECT_EQ(less.minus(more), -first);
    EXPECT_NEAR(first, rounded, 0x1p-51 * (more.value() + less.value()));
    for (int i = 0; i < 9; ++i) {
      ExactSum both;
      add_some(both);
      more.merge(both), less.merge(both);
    }
    differing += more.minus(less) != first;
    differing_when_rounded += more.value() - less.value() != rounded;
  }
  EXPECT_EQ(differing, 0);
  EXPECT_GT(differing_when_rounded, 0) << "control";
  EXPECT_GT(negative, 0);
  ExactSum none, one, infinite;
  one.add(1, 0), infinite.add(std::numeric_limits<float>::infinity(), 0);
  EXPECT_EQ(none.minus(one), -1);
  EXPECT_EQ(one.minus(one), 0);
  EXPECT_TRUE(std::isnan(one.minus(infinite)) && std::isnan(infinite.minus(one)));
}

TEST(ExactSum, HoldsTheLargestAndTheSmallest) {
  constexpr float kLargest = std::numeric_limits<float>::max(), kSmallest = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(sum_of({}), 0);
  EXPECT_EQ(sum_of({{0.f, 256}, {0.f, -256}}), 0);
  EXPECT_EQ(sum_of({{kSmallest, -256}}), std::ldexp(1.0, -149 - 256));
  EXPECT_EQ(sum_of({{kSmallest, -256}, {kLargest, 256}}), std::ldexp(double{kLargest}, 256));
  EXPECT_EQ(sum_of({{1.f, 0}, {1.f, -40}, {1.f, -52}}), 1 + 0x1p-40 + 0x1p-52);
  ExactSum many;
  for (int i = 0; i < 1 << 20; ++i) many.add(kLargest, 256);
  EXPECT_EQ(many.value(), std::ldexp(double{kLargest}, 256 + 20));
  for (const float x : {std::numeric_limits<float>::infinity(), std::nanf("")})
    EXPECT_TRUE(std::isnan(sum_of({{1.f, 0}, {x, 0}, {2.f, 3}})));
  figure("sums from 2^-405 to 2^404");
}

}  // namespace
}  // namespace lowtide::testing
