// Tests the pager on a device that runs everything late: values, order and time. plan_test.cpp counts what it moves;
// tests/memory drops its waits and lets its calls fail.
#include "memory/pager.h"

#include "support/fake/fake_queues.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

using fake::FakeQueues;
using fake::FakeQueuesOptions;
using Bytes = std::vector<uint8_t>;

struct Case {
  TierPlan plan;
  std::vector<int64_t> chunk_bytes;
  int chunks() const { return static_cast<int>(chunk_bytes.size()); }
};

Case make_case(std::vector<int64_t> chunk_bytes, std::vector<bool> resident, int slots) {
  TierPlan plan = plan_keeping(std::move(resident), chunk_bytes, slots);
  return {std::move(plan), std::move(chunk_bytes)};
}

Case random_case(Rng& rng, int chunks, int slots, double resident) {
  std::vector<int64_t> bytes;
  std::vector<bool> stays;
  for (int i = 0; i < chunks; ++i) {
    bytes.push_back(rng.between(1, 96));
    stays.push_back(rng.chance(resident));
  }
  return make_case(std::move(bytes), std::move(stays), slots);
}

std::vector<Bytes> initial_state(const Case& c) {
  std::vector<Bytes> state;
  for (int i = 0; i < c.chunks(); ++i) state.push_back(FakeQueues::initial(i, c.chunk_bytes[static_cast<size_t>(i)]));
  return state;
}

void plain_step(std::vector<Bytes>& state, int64_t number, const std::vector<bool>& wanted = {}) {
  for (size_t i = 0; i < state.size(); ++i)
    if (wanted.empty() || wanted[i])
      FakeQueues::mix(state[i].data(), static_cast<int64_t>(state[i].size()), static_cast<int>(i), number);
}

std::vector<Bytes> contents(FakeQueues& queues, const Case& c) {
  std::vector<Bytes> state;
  for (int i = 0; i < c.chunks(); ++i) state.push_back(queues.contents(i));
  return state;
}

constexpr TransferMode kTransferModes[] = {TransferMode::kCopy, TransferMode::kHybrid, TransferMode::kZeroCopy};

// Returns the case with a plan for this transfer mode.
Case on_transfer(Case c, TransferMode transfer) {
  if (transfer == TransferMode::kZeroCopy) c.plan = plan_keeping(c.plan.resident, c.chunk_bytes, 0);
  return c;
}

size_t races(FakeQueues& queues) { return queues.device().race_checker().races().size(); }

std::string first_race(FakeQueues& queues) {
  return races(queues) ? to_string(queues.device().race_checker().races().front()) : "none";
}

TEST(Pager, StepsEqualAPlainLoopUnderEverySchedule) {
  Rng rng = seeded("Pager.StepsEqualAPlainLoopUnderEverySchedule", 20260711);
  int cases = 0;
  int64_t steps = 0, ahead = 0, borrowed = 0;
  for (int chunks = 1; chunks <= 12; ++chunks)
    for (int slots = 1; slots <= 4; ++slots)
      for (int i = 0; i < 100; ++i, ++cases) {
        FakeQueuesOptions options{.seed = rng.next(), .blocking = i % 4 == 3, .transfer = kTransferModes[i % 7 % 3]};
        const Case c =
            on_transfer(random_case(rng, chunks, slots, 0.15 * static_cast<double>(i % 5)), options.transfer);
        options.more_slots = c.plan.slots ? static_cast<int>(rng.below(4)) : 0;
        FakeQueues queues(c.plan, c.chunk_bytes, options);
        Pager pager(c.plan, options.transfer);
        std::vector<Bytes> expected = initial_state(c);
        std::vector<bool> wanted;
        for (int64_t s = 0, n = rng.between(1, 5); s < n; ++s, ++steps) {
          if (i % 3 == 1 && rng.chance(0.5)) {
            wanted.resize(static_cast<size_t>(chunks));
            for (int chunk = 0; chunk < chunks; ++chunk) wanted[static_cast<size_t>(chunk)] = rng.chance(0.6);
          }
          queues.begin_step(s);
          pager.step(queues, wanted);
          plain_step(expected, s, wanted);
          if (rng.chance(0.25)) queues.drain();
          if (rng.chance(0.7)) pager.set_slots(queues, static_cast<size_t>(c.plan.slots));
          if (rng.chance(0.5)) pager.prefetch(queues), ++ahead;
          if (options.more_slots > 0 && rng.chance(0.4)) {
            pager.set_slots(queues, static_cast<size_t>(c.plan.slots + rng.between(1, options.more_slots)));
            if (rng.chance(0.7)) pager.prefetch(queues);
            ++borrowed;
          }
          if (rng.chance(0.1)) queues.drain(), pager.forget();
        }
        queues.drain();
        ASSERT_EQ(contents(queues, c), expected) << chunks << " chunks, " << slots << " slots, seed " << options.seed;
        ASSERT_EQ(races(queues), 0u) << first_race(queues);
        ASSERT_LE(queues.near_peak(), c.plan.bytes + options.more_slots * c.plan.slot_bytes);
      }
  figure(
      "{} seeded schedules of 3 transfer modes, {} steps, {} of them with the next one's first reads ahead, {} with a "
      "larger ring: bytes of a plain loop, 0 races, near memory within its capacity",
      cases, steps, ahead, borrowed);
}

// Returns the seconds, on the virtual clock, of one step of `streamed` chunks of one unit of bytes each, with
// `resident` resident chunks among them.
double step_seconds(int streamed, int resident, int slots, double read, double step, double write,
                    bool blocking = false) {
  constexpr int64_t kUnit = 64;
  const size_t chunks = static_cast<size_t>(streamed + resident);
  std::vector<bool> stays(chunks, false);
  std::fill_n(stays.begin(), resident, true);
  const Case c = make_case(std::vector<int64_t>(chunks, kUnit), stays, slots);
  FakeQueuesOptions options{
      .read_rate = kUnit / read, .step_rate = kUnit / step, .write_rate = kUnit / write, .blocking = blocking};
  FakeQueues queues(c.plan, c.chunk_bytes, options);
  queues.begin_step(0);
  Pager(c.plan).step(queues);
  queues.drain();
  return queues.device().now();
}

std::array<double, 3> random_seconds(Rng& rng) {  // three values from 1 to 100
  const auto draw = [&] { return static_cast<double>(rng.between(1, 100)); };
  return {draw(), draw(), draw()};
}

// Let n equal chunks take r to read, s to step and w to write, and let M = max(r, s, w). With S >= 3 slots, step k
// starts when read k has ended, and read k starts when write k - S has ended. By induction, read k ends by r + kM, step
// k by r + s + kM and write k by r + s + w + kM, because write k - S, for which read k waits, ends by r + s + w + (k -
// S)M <= kM. So a step takes at most (n - 1)M + r + s + w: the slowest queue's time nM, plus r + s + w - M to fill and
// drain the pipeline. No order takes less, because chunk 0 must reach the slowest queue before that queue starts, and
// chunk n - 1 must pass the remaining queues after it.
TEST(Pager, ThreeSlotsTakeTheTimeOfTheSlowestLane) {
  Rng rng = seeded("Pager.ThreeSlotsTakeTheTimeOfTheSlowestLane", 31);
  int points = 0;
  double worst = 0, worst_exact = 0, two_worst = 0;
  for (; points < 1000; ++points) {
    const auto [r, s, w] = random_seconds(rng);
    const double slowest = std::max({r, s, w});
    const int n = static_cast<int>(rng.between(1, 64));
    for (int slots = 3; slots <= 4; ++slots) {
      const double seconds = step_seconds(n, 0, slots, r, s, w);
      worst = std::max(worst, (seconds - (r + s + w - slowest)) / (n * slowest));
      worst_exact = std::max(worst_exact, std::abs(seconds / ((n - 1) * slowest + r + s + w) - 1));
      ASSERT_LE(seconds, 1.05 * n * slowest + (r + s + w - slowest));
    }
    const double one = step_seconds(n, 0, 1, r, s, w);
    ASSERT_NEAR(one / (n * (r + s + w)), 1, 1e-12);
    // With two slots, a chunk's three operations take turns in a slot, so a step takes at least half their sum per
    // chunk.
    const double two = step_seconds(n, 0, 2, r, s, w);
    two_worst = std::max(two_worst, two / step_seconds(n, 0, 3, r, s, w));
    ASSERT_LE(two, one * (1 + 1e-12));
  }
  figure(
      "{} rates and counts: >= 3 slots: (time - fill and drain) / slowest queue <= {}, time off its bound by {}; 2 "
      "slots take up to {} times that; 1 slot: the sum of the queues",
      points, worst, worst_exact, two_worst);
  for (const int slots : {1, 2, 3, 4})
    figure("  16 chunks, read 3 s, step 2 s, write 4 s each, {} slots: {} s (queues 48, 32, 64 s)", slots,
           step_seconds(16, 0, slots, 3, 2, 4));
  EXPECT_LE(worst_exact, 1e-12);
}

// If one thread drives the queues, the time depends on when the pager waits, not only on what it waits for.
TEST(Pager, ABlockedCallerLosesNoTimeWithThreeSlots) {
  Rng rng = seeded("Pager.ABlockedCallerLosesNoTimeWithThreeSlots", 32);
  int points = 0;
  double worst[5] = {};
  for (; points < 1000; ++points) {
    const auto [r, s, w] = random_seconds(rng);
    const double slowest = std::max({r, s, w});
    const int n = static_cast<int>(rng.between(1, 64));
    for (int slots = 1; slots <= 4; ++slots) {
      const double seconds = step_seconds(n, 0, slots, r, s, w, true);
      worst[slots] = std::max(worst[slots], (seconds - (r + s + w - slowest)) / (n * slowest));
      ASSERT_LE(seconds, slots >= 3 ? 1.05 * n * slowest + (r + s + w - slowest) : n * (r + s + w) * (1 + 1e-12));
    }
  }
  figure(
      "{} rates and counts, queues driven by one thread: (time - fill and drain) / slowest queue <= {}, {}, {}, {} "
      "with 1, 2, 3, 4 slots",
      points, worst[1], worst[2], worst[3], worst[4]);
  for (const int slots : {1, 2, 3, 4})
    figure("  16 chunks, read 3 s, step 2 s, write 4 s each, {} slots: {} s; 17 more resident: {} s", slots,
           step_seconds(16, 0, slots, 3, 2, 4, true), step_seconds(16, 17, slots, 3, 2, 4, true));
}

TEST(Pager, RefusesPlansThatDoNotHoldTogether) {
  const Case good = make_case({8, 8, 8}, {false, true, false}, 2);
  const auto refused = [&](auto&& change) {
    TierPlan plan = good.plan;
    change(plan);
    try {
      Pager pager(plan);
    } catch (const Error& e) {
      return e.kind() == ErrorKind::kInvalidArgument;
    }
    return false;
  };
  EXPECT_FALSE(refused([](TierPlan&) {}));
  EXPECT_TRUE(refused([](TierPlan& p) { p.slots = 0; }));
  EXPECT_TRUE(refused([](TierPlan& p) { p.slots = -1; }));
  EXPECT_TRUE(refused([](TierPlan& p) { p.streamed = {2, 0}; }));
  EXPECT_TRUE(refused([](TierPlan& p) { p.streamed = {0}; }));
  EXPECT_TRUE(refused([](TierPlan& p) { p.streamed = {0, 1, 2}; }));
  EXPECT_TRUE(refused([](TierPlan& p) { p.streamed = {0, 2, 3}; }));
  EXPECT_FALSE(refused([](TierPlan& p) { p = TierPlan{}; }));
}

}  // namespace
}  // namespace lowtide::testing
