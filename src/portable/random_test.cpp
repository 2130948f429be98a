// The counter-based hash: known answers, and statistics that a weaker hash fails.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace {
#include "portable/portable.h"

// Written once more from the definition, in 64-bit arithmetic reduced to 32 bits.
uint32_t hash_by_definition(uint64_t index, uint64_t k0, uint64_t k1, bool second_multiplication = true) {
  constexpr uint64_t kMask = 0xffffffff;
  uint64_t x = (index * 0x9E3779B9 + k0) & kMask;
  x = ((x ^ (x >> 15)) * 0x2C1B3C6D) & kMask;
  x ^= k1;
  x ^= x >> 13;
  if (second_multiplication) x = (x * 0x297A2D39) & kMask;
  return static_cast<uint32_t>(x ^ (x >> 16));
}

TEST(Random, GivesKnownAnswers) {
  // Splitmix64 started at 0 and at 1234567: the published first outputs of the generator.
  EXPECT_EQ(splitmix64(0), 0xe220a8397b1dcdafull);
  EXPECT_EQ(splitmix64(1234567), 6457827717110365317ull);
  int checked = 0;
  for (u64 seed : {0ull, 1ull, 0xffffffffffffffffull}) {
    const RandomKey key = random_key(seed, 7, 3, 0);
    for (u32 index = 0; index < 100000; index += 7, ++checked)
      ASSERT_EQ(random_bits(index, key), hash_by_definition(index, key.k0, key.k1)) << "index " << index;
    ASSERT_EQ(random_bits(0xffffffffu, key), hash_by_definition(0xffffffffu, key.k0, key.k1));
  }
  std::printf("%d words equal to the definition\n", checked);
}

TEST(Random, KeysDifferInEveryInput) {
  const RandomKey base = random_key(5, 6, 7, 0);
  const RandomKey others[] = {random_key(6, 6, 7, 0), random_key(5, 7, 7, 0), random_key(5, 6, 8, 0),
                              random_key(5, 6, 7, 1)};
  for (const RandomKey& other : others) EXPECT_TRUE(other.k0 != base.k0 && other.k1 != base.k1);
}

// Chi-squared of counts against equal expectation, as a standard normal (Wilson-Hilferty is not needed at >= 4095
// degrees).
double chi_squared_z(const std::vector<uint32_t>& counts, double total) {
  const double expected = total / static_cast<double>(counts.size());
  double chi = 0;
  for (const uint32_t c : counts) chi += (c - expected) * (c - expected) / expected;
  const double degrees = static_cast<double>(counts.size()) - 1;
  return (chi - degrees) / std::sqrt(2 * degrees);
}

constexpr u32 kValues = 1u << 20;
// 22 statistics below: |z| > 5 by chance has a probability of 22 * 6e-7 for a fixed, printed set of keys.
constexpr double kLimit = 5;

template <class Hash>
double worst_pair_z(Hash&& hash, bool print) {
  double worst = 0;
  for (const u32 lag : {1u, 16u, 256u, 4096u}) {
    for (const int shift : {16, 0}) {  // the high and the low half are used apart
      std::vector<uint32_t> counts(64 * 64);
      for (u32 i = 0; i < kValues; ++i)
        ++counts[((hash(i) >> (shift + 10)) & 63) * 64 + ((hash(i + lag) >> (shift + 10)) & 63)];
      const double z = chi_squared_z(counts, kValues);
      if (print) std::printf("  lag %u, bits from %d: z %.2f\n", lag, shift, z);
      worst = std::max(worst, std::fabs(z));
    }
  }
  return worst;
}

TEST(Random, FillsItsBinsEvenly) {
  for (u64 seed : {1ull, 2ull, 3ull}) {
    const RandomKey key = random_key(seed, 1, 0, 0);
    for (const int shift : {16, 0}) {
      std::vector<uint32_t> counts(65536);
      for (u32 i = 0; i < kValues; ++i) ++counts[(random_bits(i, key) >> shift) & 0xffff];
      const double z = chi_squared_z(counts, kValues);
      std::printf("seed %llu, bits from %d: %u values, z %.2f\n", seed, shift, kValues, z);
      EXPECT_LT(std::fabs(z), kLimit);
    }
  }
}

TEST(Random, NeighboursAreIndependent) {
  for (u64 seed : {1ull, 2ull}) {
    const RandomKey key = random_key(seed, 1, 0, 0);
    std::printf("seed %llu\n", seed);
    EXPECT_LT(worst_pair_z([&](u32 i) { return random_bits(i, key); }, true), kLimit);
  }
}

TEST(Random, TheStatisticsCatchOneMultiplication) {
  const RandomKey key = random_key(1, 1, 0, 0);
  const double z = worst_pair_z([&](u32 i) { return hash_by_definition(i, key.k0, key.k1, false); }, false);
  std::printf("one multiplication: worst z %.0f\n", z);
  EXPECT_GT(z, 4 * kLimit);
}

}  // namespace
