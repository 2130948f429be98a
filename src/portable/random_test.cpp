// The counter-based hash: known answers, and statistics that a weaker hash fails.
#include "support/test.h"

namespace {
#include "portable/portable.h"

using lowtide::testing::figure;

// The definition again, in 64-bit arithmetic reduced to 32 bits.
constexpr uint64_t kMask = 0xffffffff;
uint64_t half_by_definition(uint64_t index, uint64_t k0) {
  const uint64_t x = (index * 0x9E3779B9 + k0) & kMask;
  return ((x ^ (x >> 15)) * 0x2C1B3C6D) & kMask;
}
uint32_t hash_by_definition(uint64_t index, uint64_t k0, uint64_t k1, bool second_multiplication = true) {
  uint64_t x = half_by_definition(index, k0) ^ k1;
  x ^= x >> 13;
  if (second_multiplication) x = (x * 0x297A2D39) & kMask;
  return static_cast<uint32_t>(x ^ (x >> 16));
}

TEST(Random, GivesKnownAnswers) {
  // The published first outputs of splitmix64 from the seeds 0 and 1234567.
  EXPECT_EQ(splitmix64(0), 0xe220a8397b1dcdafull);
  EXPECT_EQ(splitmix64(1234567), 6457827717110365317ull);
  int checked = 0;
  for (u64 seed : {0ull, 1ull, 0xffffffffffffffffull}) {
    const RandomKey key = random_key(seed, 7, 3, 0);
    for (u32 index = 0; index < 100000; index += 7, ++checked)
      ASSERT_EQ(random_bits(index, key), hash_by_definition(index, key.k0, key.k1)) << "index " << index;
    ASSERT_EQ(random_bits(0xffffffffu, key), hash_by_definition(0xffffffffu, key.k0, key.k1));
  }
  figure("{} words equal to the definition", checked);
}

TEST(Random, KeysDifferInEveryInput) {
  const RandomKey base = random_key(5, 6, 7, 0);
  const RandomKey others[] = {random_key(6, 6, 7, 0), random_key(5, 7, 7, 0), random_key(5, 6, 8, 0),
                              random_key(5, 6, 7, 1)};
  for (const RandomKey& other : others) EXPECT_TRUE(other.k0 != base.k0 && other.k1 != base.k1);
}

// Chi-squared of counts against equal expectation, as a standard normal (4095 or more degrees need no Wilson-Hilferty).
double chi_squared_z(const std::vector<uint32_t>& counts, double total) {
  const double expected = total / static_cast<double>(counts.size());
  double chi = 0;
  for (const uint32_t c : counts) chi += (c - expected) * (c - expected) / expected;
  const double degrees = static_cast<double>(counts.size()) - 1;
  return (chi - degrees) / std::sqrt(2 * degrees);
}

constexpr u32 kValues = 1u << 22;
// The upper 6 bits of both partners decide a rounding of one in 4096, which long averages need.
constexpr int kPairBits = 6;
// For about 60 statistics, chance exceeds |z| = 4 with a probability of 60 * 6e-5, for a fixed, printed set of keys.
constexpr double kLimit = 4;

double bins_z(const std::vector<u16>& values) {
  std::vector<uint32_t> counts(65536);
  for (const u16 x : values) ++counts[x];
  return chi_squared_z(counts, static_cast<double>(values.size()));
}

double pairs_z(const std::vector<u16>& a, const std::vector<u16>& b, u32 lag) {
  std::vector<uint32_t> counts(64 * 64);
  const size_t n = a.size() - lag;
  for (size_t i = 0; i < n; ++i) ++counts[size_t(a[i] >> (16 - kPairBits)) * 64 + (b[i + lag] >> (16 - kPairBits))];
  return chi_squared_z(counts, static_cast<double>(n));
}

// The random numbers of stochastic rounding for elements from 0 on.
template <class Hash>
std::vector<u16> stream(Hash&& random) {
  std::vector<u16> values(kValues);
  for (u32 i = 0; i < kValues; ++i) values[i] = static_cast<u16>(random(i));
  return values;
}

// z of all statistics of a stream and of its neighbours; prints them if `name` is given. Returns the worst |z|.
double judge(const char* name, const std::vector<u16>& values,
             const std::vector<std::pair<const char*, const std::vector<u16>*>>& others) {
  double worst = 0;
  const auto see = [&](const char* what, double z) {
    if (name) std::printf(" %s %.2f", what, z);
    worst = std::max(worst, std::fabs(z));
  };
  if (name) std::printf("%s: z of", name);
  see("bins", bins_z(values));
  see("lag 1", pairs_z(values, values, 1));
  see("16", pairs_z(values, values, 16));
  see("256", pairs_z(values, values, 256));
  see("4096", pairs_z(values, values, 4096));
  for (const auto& [what, other] : others) see(what, pairs_z(values, *other, 0));
  if (name) figure("");
  return worst;
}

TEST(Random, BitsOfRoundingAreEvenAndIndependent) {
  double worst = 0;
  for (const u64 seed : {0ull, 1ull, 2ull}) {
    const auto of = [](const RandomKey& key) { return stream([=](u32 i) { return random_16(i, key); }); };
    const RandomKey key = random_key(seed, 7, 32, 0);
    const std::vector<u16> values = of(key), next_step = of(random_key(seed, 8, 32, 0)),
                           next_seed = of(random_key(seed + 1, 7, 32, 0)), next_state = of(random_key(seed, 7, 33, 0)),
                           far = of(key_at(key, 1));
    const std::string name = "seed " + std::to_string(seed);
    worst = std::max(worst, judge(name.c_str(), values,
                                  {{"next step", &next_step},
                                   {"next seed", &next_seed},
                                   {"next state", &next_state},
                                   {"2^32 elements on", &far}}));
  }
  figure("{} values each; worst |z| {}", kValues, worst);
  EXPECT_LT(worst, kLimit);
}

TEST(Random, TheStatisticsCatchOneMultiplication) {
  const RandomKey key = random_key(1, 1, 0, 0), next = random_key(1, 2, 0, 0);
  const auto weak = [](const RandomKey& of) {
    return stream([=](u32 i) {
      const u32 high = hash_by_definition(i >> 2, of.k0, of.k1, false) >> 8 * (i & 3) & 0xffu;
      return high << 8 | (half_by_definition(i >> 2, of.k0) >> (i & 1 ? 24 : 16) & 0xffu);
    });
  };
  const std::vector<u16> values = weak(key), next_step = weak(next);
  const double z = judge("one multiplication", values, {{"next step", &next_step}});
  figure("worst |z| {}", z);
  EXPECT_GT(z, 4 * kLimit);
}

// Neighbours share the bytes of one hash and of its half; index bits above 32 select another key.
TEST(Random, RoundingTakesTheBytesOfTheDefinition) {
  const RandomKey key = random_key(3, 4, 5, 0);
  for (const u32 index : {0u, 1u, 2u, 3u, 4u, 77777u, 77778u, 77779u, 0xfffffffcu, 0xfffffffeu, 0xffffffffu}) {
    const u32 byte = index % 4, high = hash_by_definition(index / 4, key.k0, key.k1);
    const auto low = static_cast<u32>(half_by_definition(index / 4, key.k0));
    EXPECT_EQ(random_16(index, key), (high >> 8 * byte & 0xffu) << 8 | (low >> (byte % 2 ? 24 : 16) & 0xffu)) << index;
  }
  EXPECT_EQ(key_at(key, 0).k0, key.k0);
  EXPECT_EQ(key_at(key, 3).k1, hash_by_definition(~3u, key.k0, key.k1));
  EXPECT_NE(key_at(key, 1).k0, key_at(key, 2).k0);
}

}  // namespace
