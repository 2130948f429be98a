// Stochastic rounding by these bits: one element's chance over many steps, and sums over many elements in one step. An
// element is rounded up if the sum of `fraction` and its 16 bits reaches 65536.
#include "support/test.h"

namespace {
#include "portable/portable.h"

using lowtide::testing::figure;

constexpr u64 kSeed = 11, kState = 2 * kStreamsOfParameter + 1;
RandomKey key_of_step(u64 step, u64 seed = kSeed, u64 state = kState) { return random_key(seed, step, state, 0); }

// A rejected design: all elements of a state share a lower byte in each step.
u32 with_shared_byte(u32 index, RandomKey key) { return (random_16(index, key) & 0xff00u) | key.k1 >> 24; }

bool rounds_up(u32 random, u32 fraction) { return random + fraction >= 65536; }

double chi_squared_z(const std::vector<uint32_t>& counts, double total) {
  const double degrees = static_cast<double>(counts.size()) - 1, expected = total / (degrees + 1);
  double chi = 0;
  for (const uint32_t c : counts) chi += (c - expected) * (c - expected) / expected;
  return (chi - degrees) / std::sqrt(2 * degrees);
}

// Over steps, all values of one element's 16 bits are equally frequent and independent of its next bits and of the bits
// for other seeds, states and elements. Pairs compare the upper 6 bits.
TEST(RandomRounding, OneElementsBitsAreEvenAndIndependentOverSteps) {
  constexpr u64 kSteps = 1u << 20;
  constexpr double kLimit = 4;  // for 88 statistics; exceeded by chance with a probability of 88 * 6e-5, for fixed keys
  double worst = 0;
  int statistics = 0;
  const auto see = [&](const std::vector<uint32_t>& counts, const char* what, u32 of) {
    const double z = chi_squared_z(counts, kSteps);
    worst = std::max(worst, std::fabs(z)), ++statistics;
    EXPECT_LT(std::fabs(z), kLimit) << what << " " << of;
  };
  struct Other {
    const char* name;
    u32 index;
    u64 steps_on, seed, state;
  };
  for (const u32 index : {0u, 5u, 4098u, 0xfffffeffu}) {
    std::vector<u16> own(kSteps);
    std::vector<uint32_t> bins(65536);
    for (u64 step = 0; step < kSteps; ++step) {
      own[step] = static_cast<u16>(random_16(index, key_of_step(step)));
      ++bins[own[step]];
    }
    see(bins, "bins of element", index);
    std::vector<Other> others = {{"next step of", index, 1, kSeed, kState},
                                 {"next seed of", index, 0, kSeed + 1, kState},
                                 {"first moment of", index, 0, kSeed, kState - 1},
                                 {"next parameter of", index, 0, kSeed, kState + kStreamsOfParameter}};
    for (const u32 lag : {1, 2, 3, 4, 5, 8, 12, 16, 20, 32, 64, 128, 256, 1024, 4096, 65536, 1 << 24})
      others.push_back({"element before", index + lag, 0, kSeed, kState});
    for (const Other& other : others) {
      std::vector<uint32_t> pairs(64 * 64);
      for (u64 step = 0; step < kSteps; ++step) {
        const u32 theirs = random_16(other.index, key_of_step(step + other.steps_on, other.seed, other.state));
        ++pairs[(own[step] >> 10) * 64u + (theirs >> 10)];
      }
      see(pairs, other.name, other.index);
    }
  }
  figure("{} statistics of 4 elements over {} steps: worst |z| {}", statistics, kSteps, worst);
}

// Sums over elements with the same fraction: over steps, their mean is fraction * elements, and their variance that of
// independent roundings, n p (1 - p).
//
// The lower byte adds little. Write p = (h + l) / 256 with an upper part h and 0 <= l < 1. Given the lower bytes,
// element i goes up with the chance (h + [lower byte i carries]) / 256, so two elements correlate by 2^-16 l (1 - l) /
// (p (1 - p)) times the correlation of their lower bytes: at most 2^-8 (1 - l) / (1 - p), for h = 0. If pairs of
// elements share a lower byte, the variance is 1 + (1 - l) / 256 times that of independent roundings; if all do, 1 + (n
// - 1) (1 - l) / 256 times.
struct Sum {
  u32 fraction;
  double sum = 0, squares = 0, shared_sum = 0, shared_squares = 0;
};

TEST(RandomRounding, SumsOverElementsVaryAsThoseOfIndependentRoundings) {
  constexpr int kSteps = 2000, kElements = 1 << 14;
  Sum sums[] = {{16}, {100}, {128}, {255}, {257}, {3000}, {0x8000}, {0xfff0}};
  for (int step = 0; step < kSteps; ++step) {
    const RandomKey key = key_of_step(static_cast<u64>(step));
    std::vector<u32> own(kElements), shared(kElements);
    for (u32 i = 0; i < kElements; ++i) own[i] = random_16(i, key), shared[i] = with_shared_byte(i, key);
    for (Sum& of : sums) {
      double ups = 0, shared_ups = 0;
      for (u32 i = 0; i < kElements; ++i) ups += rounds_up(own[i], of.fraction);
      for (u32 i = 0; i < kElements; ++i) shared_ups += rounds_up(shared[i], of.fraction);
      of.sum += ups, of.squares += ups * ups;
      of.shared_sum += shared_ups, of.shared_squares += shared_ups * shared_ups;
    }
  }
  const auto variance = [&](double sum, double squares) { return squares / kSteps - sum / kSteps * (sum / kSteps); };
  for (const Sum& of : sums) {
    const double p = of.fraction / 65536.0, wanted = kElements * p * (1 - p);
    const double z = (of.sum / kSteps - kElements * p) / std::sqrt(wanted / kSteps);
    const double ratio = variance(of.sum, of.squares) / wanted;
    const double shared = variance(of.shared_sum, of.shared_squares) / wanted;
    std::printf(
        "fraction %5u / 65536: mean off by %5.2f standard errors, variance %.3f of independent; one byte for "
        "all: %.1f\n",
        of.fraction, z, ratio, shared);
    // The estimated variance scatters by sqrt((2 + excess) / steps). A sum's excess kurtosis is at most 1 / (n p (1 -
    // p)), which is 1/4 for the smallest fraction.
    EXPECT_LT(std::fabs(z), 4);
    EXPECT_LT(std::fabs(ratio - 1), 4 * std::sqrt((2 + 1 / wanted) / kSteps));
    const double l = (of.fraction % 256) / 256.0;
    if (of.fraction < 256) {
      EXPECT_GT(shared, 0.5 * (1 + (kElements - 1) * (1 - l) / 256)) << "control";
    }
  }
}

// Sums over every 256 k-th element, as in a column of a matrix. Too few go up in a step to count, but if upper bytes
// are independent, the variance is at most 1 + (r - 1) / 256 times that of independent roundings, where r is the same
// ratio for the number of lower bytes that carry. One byte for all has r = rows. An estimate of r scatters by sqrt(2 /
// steps).
// carry_from: the lowest lower byte that carries.
double lower_bytes_variance(u32 rows, u32 blocks, u32 column, u32 steps, u32 carry_from) {
  const double p = (256 - carry_from) / 256.0;
  double sum = 0, squares = 0;
  for (u32 step = 0; step < steps; ++step) {
    const RandomKey key = key_of_step(step);
    u32 carry = 0;
    for (u64 row = 0; row < rows;) {
      const u64 first = row * blocks * 256 + column, high = first >> 32;
      const RandomKey of_high = key_at(key, static_cast<u32>(high));
      const u64 end = std::min<u64>(rows, (((high + 1) << 32) - column + u64{blocks} * 256 - 1) / (u64{blocks} * 256));
      for (u32 index = static_cast<u32>(first); row < end; ++row, index += blocks * 256)
        carry += (random_16(index, of_high) & 0xffu) >= carry_from;
    }
    sum += carry, squares += 1.0 * carry * carry;
  }
  return (squares / steps - sum / steps * (sum / steps)) / (rows * p * (1 - p));
}

TEST(RandomRounding, SumsOverColumnsVaryAsThoseOfIndependentRoundings) {
  constexpr u32 kRows = 1024, kSteps = 400;
  double worst = 0, total = 0;
  int columns = 0;
  for (u32 blocks = 1; blocks <= 128; ++blocks)
    for (u32 column = 0; column < 2; ++column, ++columns) {
      const double r = lower_bytes_variance(kRows, blocks, column, kSteps, 240);
      worst = std::max(worst, r), total += r;
    }
  figure(
      "{} columns of {} rows: the lower bytes' variance is {} of independent ones' in the mean, {} at most: sums vary "
      "by {} % more at most",
      columns, kRows, total / columns, worst, (worst - 1) / 2.56);
  EXPECT_LT(worst, 2);  // the ratio when pairs share a lower byte
}

// Many rows whose length makes the lower bytes of different hashes coincide. Only the number of rows bounds r here; the
// limit allows sums a tenth more variance.
TEST(RandomRounding, SumsOverLongColumnsVaryLittleMore) {
  constexpr u32 kSteps = 150;
  constexpr double kMost = 1 + 0.1 * 256;
  const struct { u32 rows, blocks; } kMatrices[] = {{65536, 1}, {65536, 112}, {65536, 128}, {65536, 384}, {8192, 512}};
  for (const auto& [rows, blocks] : kMatrices) {
    double r = 0;
    for (const u32 column : {0, 1})
      for (const u32 carry_from : {128, 240})
        r = std::max(r, lower_bytes_variance(rows, blocks, column, kSteps, carry_from));
    std::printf(
        "%5u rows of %3u blocks: the lower bytes' variance is %4.1f of independent ones', +- %.1f: sums vary by "
        "%.1f %% more at most\n",
        rows, blocks, r, r * std::sqrt(2.0 / kSteps), (r - 1) / 2.56);
    EXPECT_LT(r, kMost) << blocks;
  }
}

// In one step, elements do not round alike at lags 1 to 64 or at the lags of blocks.
TEST(RandomRounding, NeighboursRoundIndependently) {
  constexpr u32 kValues = 1u << 22;
  constexpr double kLimit = 5;  // for 222 statistics; the smallest fraction's are skewed: 16 pairs are expected
  std::vector<u32> lags;
  for (u32 lag = 1; lag <= 64; ++lag) lags.push_back(lag);
  for (u32 lag = 128; lag <= 1u << 16; lag *= 2) lags.push_back(lag);
  const RandomKey key = key_of_step(5);
  for (const u32 fraction : {128u, 3000u, 0x8000u}) {
    std::vector<u8> up(kValues);
    for (u32 i = 0; i < kValues; ++i) up[i] = rounds_up(random_16(i, key), fraction);
    const double p = fraction / 65536.0;
    double worst = 0;
    for (const u32 lag : lags) {
      u32 both = 0, ups = 0;
      for (u32 i = 0; i + lag < kValues; ++i) both += up[i] & up[i + lag], ups += u32{up[i]} + up[i + lag];
      const double n = kValues - lag;
      worst = std::max(worst, std::fabs(both - p * ups + n * p * p) / (std::sqrt(n) * p * (1 - p)));
    }
    figure("fraction {} / 65536, {} lags: worst |z| of the correlation {}, {}", fraction, lags.size(), worst,
           worst / std::sqrt(double{kValues}));
    EXPECT_LT(worst, kLimit) << fraction;
  }
}

}  // namespace
