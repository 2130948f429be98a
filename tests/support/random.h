// Random numbers for tests: one small generator, the same on every machine. A test prints its seed.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "support/half_reference.h"

namespace lowtide::testing {

// Returns LOWTIDE_TEST_SEED, or a new seed.
inline uint32_t random_seed() {
  const char* const given = std::getenv("LOWTIDE_TEST_SEED");
  return given ? static_cast<uint32_t>(std::strtoul(given, nullptr, 10)) : std::random_device{}();
}

// The layers under the density exp(-x^2 / 2), x >= 0, all of equal area (Marsaglia and Tsang, "The Ziggurat Method",
// 2000, with their constants for 128 layers). Layer i reaches to edge[i]; up to edge[i + 1] it lies entirely below the
// density.
struct NormalLayers {
  static constexpr size_t kCount = 128;
  static constexpr double kTail = 3.442619855899, kArea = 9.91256303526217e-3;
  std::array<double, kCount + 1> edge{};

  NormalLayers() {
    const auto density = [](double x) { return std::exp(-x * x / 2); };
    edge[0] = kArea / density(kTail), edge[1] = kTail;
    for (size_t i = 2; i < kCount; ++i)  // the last stays 0
      edge[i] = std::sqrt(-2 * std::log(kArea / edge[i - 1] + density(edge[i - 1])));
  }
  static const NormalLayers& get() {
    static const NormalLayers made;
    return made;
  }
};

class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}

  uint64_t next() {  // splitmix64
    uint64_t x = state_ += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(next() % static_cast<uint64_t>(n)); }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool chance(double p) { return uniform() < p; }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // [0, 1)
  // This is the most common draw of tests, so 99 of 100 calls take only a product and a comparison. Each draw is a
  // separate statement, because compilers differ in which operand comes first.
  double normal() {
    const std::array<double, NormalLayers::kCount + 1>& edge = NormalLayers::get().edge;
    for (;;) {
      const uint64_t bits = next();
      const size_t layer = bits % NormalLayers::kCount;
      const double sign = bits & NormalLayers::kCount ? -1 : 1;
      const double x = static_cast<double>(bits >> 11) * 0x1p-53 * edge[layer];
      if (x < edge[layer + 1]) return sign * x;
      if (layer == 0) return sign * tail();
      const double above = std::exp((x * x - edge[layer] * edge[layer]) / 2);
      const double below = std::exp((x * x - edge[layer + 1] * edge[layer + 1]) / 2);
      if (above + uniform() * (below - above) < 1) return sign * x;
    }
  }
  // Returns a magnitude spread evenly over the binades [low, high), of either sign.
  double over_binades(int low, int high) {
    const auto binade = static_cast<int>(between(low, high - 1));
    const double x = (1 + uniform()) * power_of_two(binade);
    return next() & 1 ? -x : x;
  }
  std::vector<size_t> permutation(size_t n) {
    std::vector<size_t> order(n);
    std::iota(order.begin(), order.end(), size_t{0});
    for (size_t i = n; i > 1; --i) std::swap(order[i - 1], order[static_cast<size_t>(below(static_cast<int64_t>(i)))]);
    return order;
  }

 private:
  double tail() {  // draws from the density past its last layer
    for (;;) {
      const double x = -std::log(1 - uniform()) / NormalLayers::kTail, y = -std::log(1 - uniform());
      if (2 * y > x * x) return NormalLayers::kTail + x;
    }
  }

  uint64_t state_;
};

// Returns a generator, and prints its seed with the claim that it serves.
inline Rng seeded(const char* claim, uint64_t seed) {
  std::printf("%s: seed %llu\n", claim, static_cast<unsigned long long>(seed));
  return Rng(seed);
}

}  // namespace lowtide::testing
