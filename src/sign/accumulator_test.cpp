// Tests that the accumulator's bit planes hold the same counts of signs as plain counters.
#include "lowtide/sign_accumulator.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

TEST(SignAccumulator, CountsWhatWasAdded) {
  auto rng = seeded("accumulated signs", 91);
  int64_t cases = 0, additions = 0, ties = 0, differing = 0;
  for (const int64_t count : {0, 1, 7, 64, 1000, 1024, 4097, (1 << 20) + 77}) {
    for (const int most : {1, 2, 3, 7, 8, 15}) {
      if (count > 100000 && most > 3) continue;
      SignAccumulator sums(count, most, 1 + static_cast<int>(rng.below(2)));
      std::vector<int> plus(static_cast<size_t>(count));
      const int added = count > 100000 ? most : 1 + static_cast<int>(rng.below(most));
      for (int k = 0; k < added; ++k) {
        std::vector<float> x(static_cast<size_t>(count));
        for (size_t i = 0; i < x.size(); ++i) {
          x[i] = rng.chance(0.1) ? (rng.chance(0.5) ? 0.f : -0.f) : rng.chance(0.5) ? 1.f : -1.f;
          plus[i] += x[i] > 0 || (x[i] == 0 && k % 2 == 0);
        }
        EXPECT_TRUE(sums.add(x.data(), DType::kF32));
      }
      std::vector<float> mean(static_cast<size_t>(count));
      std::vector<std::byte> bits(static_cast<size_t>((count + 7) / 8));
      sums.mean(mean.data());
      sums.majority(bits.data(), "minus");
      for (size_t i = 0; i < mean.size(); ++i) {
        differing += mean[i] != static_cast<float>(2 * plus[i] - added) / static_cast<float>(added);
        const bool bit = (std::to_integer<unsigned>(bits[i / 8]) >> (i % 8) & 1u) != 0;
        differing += bit != (2 * plus[i] > added);
        ties += 2 * plus[i] == added;
      }
      EXPECT_EQ(sums.bytes(), (count + 7) / 8 * static_cast<int>(std::floor(std::log2(most)) + 1));
      ++cases, additions += added;
    }
  }
  figure("{} accumulators, {} additions, {} ties: {} elements differ", cases, additions, ties, differing);
  EXPECT_EQ(differing, 0);
  EXPECT_GT(ties, 1000);
}

// A parameter whose gradient is always zero does not drift, however many additions a round has.
TEST(SignAccumulator, ZerosDriftNowhere) {
  const float zeros[3] = {0.f, -0.f, 0.f};
  for (const int k : {1, 2, 3, 15}) {
    SignAccumulator sums(3, k);
    double place = 0, farthest = 0;
    constexpr int kRounds = 100;
    for (int round = 0; round < kRounds; ++round) {
      for (int j = 0; j < k; ++j) sums.add(zeros, DType::kF32);
      float mean[3];
      sums.mean(mean);
      ASSERT_TRUE(mean[0] == mean[1] && mean[1] == mean[2]);
      place += mean[0];
      farthest = std::max(farthest, std::fabs(place));
      sums.reset();
    }
    figure("{} rounds of {} additions of zeros: at most {} from where it was", kRounds, k, farthest);
    EXPECT_LE(farthest, k % 2 ? 1.0 / k + 1e-6 : 0.0);
    EXPECT_NEAR(place, 0, 1e-6);
  }
}

TEST(SignAccumulator, RefusesWhatMakesNoSense) {
  for (const auto& make : {+[] { SignAccumulator(-1, 3); }, +[] { SignAccumulator(8, 0); },
                           +[] { SignAccumulator(std::numeric_limits<int64_t>::max(), 3); },
                           +[] { SignAccumulator(8, 65536); }, +[] { SignAccumulator(8, 3, -1); }})
    EXPECT_THROW(make(), Error);
  SignAccumulator one(8, 1);
  const float x[8] = {1, -1, 1, -1, NAN, INFINITY, 1, 1};
  EXPECT_FALSE(one.add(x, DType::kF32)) << "a NaN is in it";
  EXPECT_THROW(one.add(x, DType::kF32), Error) << "one is the most";
  one.reset();
  EXPECT_EQ(one.added(), 0);
  EXPECT_FALSE(one.add(x, DType::kF32));
  std::byte bits{};
  EXPECT_THROW(one.majority(&bits, "zero"), Error);
}

}  // namespace
}  // namespace lowtide::testing
