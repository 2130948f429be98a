// Scales so large that their mean is beyond float32.
#include <gtest/gtest.h>

#include <cmath>

#include "support/sign_ranks.h"

namespace lowtide {
namespace {

TEST(SignMean, OverflowIsNotAppliedAndNotKept) {
  constexpr int64_t kCount = 3000;
  ThreadGroup group(2, std::chrono::seconds(60));
  int64_t refused = 0, infinite = 0;
  const auto ended = testing::run_ranks(2, [&](int r) {
    SignCollective collective(group.transport(r));
    SignResidual residual(kCount, r, 2, "fp32");
    std::vector<std::byte> bits(sign_bits_bytes(kCount), std::byte{0x5a}), result(bits.size());
    std::vector<uint16_t> scales(sign_scales(kCount)), means(scales.size());
    SignBallot ballot;
    ballot.count = kCount, ballot.bits = bits.data(), ballot.scales = scales.data();
    SignOutcome outcome;
    for (const uint16_t scale : {uint16_t{0x7f7f}, uint16_t{0x3f80}}) {  // the largest bfloat16, and 1
      std::fill(scales.begin(), scales.end(), scale);
      try {
        outcome = collective.mean(ballot, {result.data(), nullptr, nullptr, means.data()}, residual);
      } catch (const CollectiveError& e) {
        EXPECT_EQ(scale, 0x7f7f) << e.what();
        if (r == 0) ++refused;
      }
    }
    EXPECT_EQ(means, std::vector<uint16_t>(means.size(), 0x3f80));
    std::vector<float> kept(static_cast<size_t>(residual.count()));
    residual.read_values(kept.data());
    for (const float x : kept)
      if (r == 0) infinite += !std::isfinite(x);
    return outcome;
  });
  for (const testing::Ended& each : ended) EXPECT_TRUE(each.outcome.applied) << each.text;
  EXPECT_EQ(refused, 1);
  EXPECT_EQ(infinite, 0);
  std::printf("[ checks ] %lld mean beyond float32 refused; the next one is applied, %lld residuals are not finite\n",
              static_cast<long long>(refused), static_cast<long long>(infinite));
}

}  // namespace
}  // namespace lowtide
