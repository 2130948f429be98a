// Random numbers of tests: one small generator, the same on every machine. A test prints the seed it used.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace lowtide::testing {

// LOWTIDE_TEST_SEED, or a new one.
inline uint32_t random_seed() {
  const char* const given = std::getenv("LOWTIDE_TEST_SEED");
  return given ? static_cast<uint32_t>(std::strtoul(given, nullptr, 10)) : std::random_device{}();
}

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
  // Draws are statements of their own: compilers differ in which operand comes first.
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }
  // Magnitude spread evenly over the binades [low, high), either sign.
  double over_binades(int low, int high) {
    const auto binade = static_cast<int>(between(low, high - 1));
    const double x = std::ldexp(1 + uniform(), binade);
    return next() & 1 ? -x : x;
  }
  std::vector<size_t> permutation(size_t n) {
    std::vector<size_t> order(n);
    std::iota(order.begin(), order.end(), size_t{0});
    for (size_t i = n; i > 1; --i) std::swap(order[i - 1], order[static_cast<size_t>(below(static_cast<int64_t>(i)))]);
    return order;
  }

 private:
  uint64_t state_;
};

// A generator whose seed is printed with the claim it serves.
inline Rng seeded(const char* claim, uint64_t seed) {
  std::printf("%s: seed %llu\n", claim, static_cast<unsigned long long>(seed));
  return Rng(seed);
}

}  // namespace lowtide::testing
