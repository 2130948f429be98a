// Sums of squares of gradients are exact, so every instruction set and every way to cut gradients gives the same sums.
#include "backend/cpu/gradient_sums.h"

#include "lowtide/optimizer.h"
#include "support/test.h"

namespace lowtide::cpu {
namespace {

using testing::Rng;
using testing::seeded;

// Widens an element to float32.
float widened(uint32_t bits, DType dtype) {
  if (dtype == DType::kF32) return std::bit_cast<float>(bits);
  if (dtype == DType::kBF16) return std::bit_cast<float>(bits << 16);
  const int exponent = static_cast<int>(bits >> 10 & 31);
  const uint32_t mantissa = (bits & 0x3ff) | (exponent ? 0x400u : 0u);
  const float magnitude = std::ldexp(static_cast<float>(mantissa), std::max(exponent, 1) - 25);
  return bits >> 15 ? -magnitude : magnitude;
}

struct Gradients {
  DType dtype;
  std::vector<std::byte> data;
  int64_t numel;
  ExactSum squares;  // summed in integers
  uint32_t largest = 0;

  // spread: the range of exponents; share: the share of zeros; odd: the share of elements with any exponent.
  Gradients(DType type, int64_t count, int spread, double share, Rng& rng, double odd = 0)
      : dtype(type), data(static_cast<size_t>(count * dtype_bytes(type))), numel(count) {
    const int stored = dtype == DType::kF32 ? 23 : dtype == DType::kBF16 ? 7 : 10;
    const int fields = dtype == DType::kF16 ? 30 : 254;  // exponent fields of finite numbers; 0 is subnormal
    const int lowest = static_cast<int>(rng.between(0, std::max(0, fields - spread)));
    for (int64_t i = 0; i < numel; ++i) {
      const auto field =
          static_cast<uint32_t>(rng.chance(odd) ? rng.between(0, std::min(fields, lowest + spread))
                                                : rng.between(lowest, std::min(fields, lowest + spread)));
      const auto mantissa = static_cast<uint32_t>(rng.between(0, (1 << stored) - 1));
      uint32_t bits = rng.chance(share) ? 0 : field << stored | mantissa;
      const float x = std::fabs(widened(bits, dtype));
      if (rng.chance(0.5)) bits |= 1u << (dtype == DType::kF32 ? 31 : 15);
      std::memcpy(data.data() + i * dtype_bytes(dtype), &bits, static_cast<size_t>(dtype_bytes(dtype)));
      largest = std::max(largest, std::bit_cast<uint32_t>(x));
      int exponent = 0;
      const auto whole = static_cast<uint64_t>(std::ldexp(std::frexp(x, &exponent), 24));
      if (x > 0) squares.add_count(whole * whole, 2 * (exponent - 24));
    }
  }
  std::vector<GradientView> cut(const std::vector<int64_t>& ends, std::vector<Layout>& layouts) const {
    std::vector<GradientView> views;
    layouts.reserve(ends.size());
    for (int64_t begin = 0; const int64_t end : ends) {
      layouts.push_back(Layout::make(std::vector<int64_t>{end - begin}, {}));
      views.push_back({data.data() + begin * dtype_bytes(dtype), &layouts.back(), dtype});
      begin = end;
    }
    return views;
  }
};

TEST(GradientSums, AreExactOnEveryTargetAndHoweverGradientsAreCut) {
  Rng rng = seeded("gradient sums", 91);
  int64_t sums = 0, differing = 0, elements = 0;
  struct Exponents {
    int spread;
    double odd;  // makes the sums too coarse for only a few elements
  };
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
    for (const auto [spread, odd] : {Exponents{3, 0}, {25, 0}, {45, 0}, {254, 0}, {12, 0}, {12, 0.001}, {3, 0.0003}})
      for (const int64_t numel : {int64_t{1}, int64_t{37}, int64_t{16385}, rng.between(100'000, 150'000)}) {
        const Gradients given(dtype, numel, spread, 0.1, rng, odd);
        for (const std::string& target : cpu_targets())
          for (int cutting = 0; cutting < 3; ++cutting) {
            std::vector<int64_t> ends;
            for (int64_t end = 0; cutting && end < numel; ends.push_back(end))
              end = std::min(numel, end + rng.between(0, cutting == 1 ? 9 : 40'000));
            if (!cutting) ends.push_back(numel);
            std::vector<Layout> layouts;
            const GradientSums found = gradient_sums(given.cut(ends, layouts), 1 + cutting, target.c_str());
            differing += found.squares.limbs() != given.squares.limbs() || found.largest != given.largest;
            ++sums, elements += numel;
          }
      }
  EXPECT_EQ(differing, 0);
  testing::figure("{} sums of {} elements, {} differ", sums, elements, differing);
}

TEST(GradientSums, TellOfEveryElementThatIsNotFinite) {
  Rng rng = seeded("not finite", 92);
  int told = 0;
  for (const std::string& target : cpu_targets())
    for (const bool nan : {false, true})
      for (int round = 0; round < 20; ++round) {
        Gradients given(DType::kF32, 20'000, 20, 0.1, rng);
        const float bad = nan ? std::nanf("") : INFINITY;
        std::memcpy(given.data.data() + rng.between(0, given.numel - 1) * 4, &bad, 4);
        std::vector<Layout> layouts;
        const float largest =
            std::bit_cast<float>(gradient_sums(given.cut({given.numel}, layouts), 2, target.c_str()).largest);
        EXPECT_TRUE(nan ? std::isnan(largest) : std::isinf(largest)) << target;
        ++told;
      }
  testing::figure("{} told", told);
}

TEST(GradientSums, ReadStridedGradients) {
  Rng rng = seeded("strided", 93);
  const Gradients given(DType::kBF16, 300 * 200, 30, 0.1, rng);
  const Layout transposed = Layout::make(std::vector<int64_t>{200, 300}, std::vector<int64_t>{1, 200});
  const GradientView view{given.data.data(), &transposed, DType::kBF16};
  EXPECT_FALSE(transposed.contiguous);
  EXPECT_EQ(gradient_sums({&view, 1}, 2, "").squares.limbs(), given.squares.limbs());
}

}  // namespace
}  // namespace lowtide::cpu
