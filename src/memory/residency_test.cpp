// Tests when the policy promotes state, demotes state and does nothing.
#include "memory/residency.h"

#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(Residency, MarginsSuitTheDevice) {
  EXPECT_EQ(Residency::margin(140 * kGiB), 7 * kGiB);
  EXPECT_EQ(Residency::margin(16 * kGiB), kGiB);
  EXPECT_EQ(Residency::margin(20 * kGiB), kGiB);
  EXPECT_EQ(Residency::margin(4 * kGiB), kGiB / 2);
  EXPECT_EQ(Residency::margin(-1), kGiB);
}

TEST(Residency, PromotesAfterTwoStepsWhatFits) {
  Residency policy;
  const int64_t total = 80 * kGiB, margin = Residency::margin(total);
  Residency::Seen seen{30 * kGiB, total, 0, 100 * kGiB};
  EXPECT_FALSE(policy.after_step(seen));
  seen.free = 20 * kGiB;
  EXPECT_EQ(policy.after_step(seen).value_or(-1), 20 * kGiB - margin / 4 * 5);
  Residency small;
  seen.wanted = 3 * kGiB;
  EXPECT_FALSE(small.after_step(seen));
  EXPECT_EQ(small.after_step(seen).value_or(-1), 3 * kGiB) << "no more than there is";
  Residency blind;
  seen.free = -1;
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(blind.after_step(seen));
}

// On a device whose other needs vary, state never takes the memory that they need for longer than one step, does not
// move back and forth, and uses the rest.
TEST(Residency, FollowsPressureWithoutGoingToAndFro) {
  Rng rng = seeded("Residency.FollowsPressureWithoutGoingToAndFro", 121);
  int64_t moves = 0, changes = 0, steps = 0, short_of = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const int64_t total = 80 * kGiB, margin = Residency::margin(total), wanted = rng.between(1, 80) * kGiB;
    Residency policy;
    int64_t held = 0, others = rng.between(10, 70) * kGiB;
    int since = 0;
    for (int step = 0; step < 200; ++step, ++steps, ++since) {
      if (rng.chance(0.01)) others = rng.between(10, 70) * kGiB, since = 0, ++changes;
      if (others + held > total) {  // the other users are refused memory and ask for a demotion
        held = std::max<int64_t>(total - others, 0);
        policy.disturbed();
      }
      const int64_t noise = rng.between(-8, 8) * margin / 100;  // noise of an allocator
      const int64_t free = total - others - held + noise;
      const std::optional<int64_t> budget = policy.after_step({std::max<int64_t>(free, 0), total, held, wanted});
      if (budget) {
        ++moves;
        ASSERT_LE(*budget, wanted);
        ASSERT_GE(*budget, 0);
        ASSERT_NE(*budget, held);
        held = *budget;
      }
      if (since >= 1 && others + held > total - margin / 2 && held > 0) ++short_of;
      if (since > 2 * Residency::kQuietSteps + 2) {
        ASSERT_TRUE(held == wanted || total - others - held < 5 * margin / 2) << "room that is left for good";
      }
    }
  }
  EXPECT_EQ(short_of, 0);
  EXPECT_LE(moves, 3 * (changes + 300));
  figure("{} steps, {} changes of what else there is, {} moves; short of memory a step later {} times", steps, changes,
         moves, short_of);
}

}  // namespace
}  // namespace lowtide::testing
