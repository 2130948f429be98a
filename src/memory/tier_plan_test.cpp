// The plan of three tiers keeps each budget, puts every chunk in one tier, and moves over each link what no other
// choice of chunks could undercut.
#include "memory/tier_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>

#include "core/buffer.h"
#include "lowtide/error.h"
#include "memory/pager.h"
#include "support/random.h"
#include "support/share.h"

namespace lowtide::testing {
namespace {

// Bytes by link as a pager of the device's plan moves them: what is on disk crosses both.
class Links : public Queues {
 public:
  Links(const std::vector<int64_t>& sizes, const TierPlan& plan) : sizes_(sizes), plan_(plan) {}
  void read(int chunk, int) override { count(chunk, link_read, disk_read); }
  void step(int chunk, int slot) override {
    EXPECT_EQ(slot < 0, plan_.tier.at(static_cast<size_t>(chunk)) == Tier::kDevice);
    ++steps;
  }
  void write(int chunk, int) override { count(chunk, link_written, disk_written); }
  Event record(Queue) override { return 0; }
  void wait(Queue, Event) override {}

  int64_t link_read = 0, link_written = 0, disk_read = 0, disk_written = 0;
  size_t steps = 0;

 private:
  void count(int chunk, int64_t& link, int64_t& disk) {
    const int64_t bytes = sizes_.at(static_cast<size_t>(chunk));
    link += bytes;
    if (plan_.tier.at(static_cast<size_t>(chunk)) == Tier::kDisk) disk += bytes;
  }
  const std::vector<int64_t>& sizes_;
  const TierPlan& plan_;
};

// The most bytes of `sizes` beside `slots` slots of the largest of the others, by trying every set; -1: none fits.
int64_t most_beside(const std::vector<int64_t>& sizes, int slots, int64_t budget) {
  int64_t best = -1;
  for (unsigned set = 0; set < 1U << sizes.size(); ++set) {
    int64_t kept = 0, largest = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (set >> i & 1)
        kept += sizes[i];
      else
        largest = std::max(largest, sizes[i]);
    }
    if (kept + slots * largest <= budget) best = std::max(best, kept);
  }
  return best;
}

int64_t bytes_of_all(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

void expect_tiers(const std::vector<int64_t>& sizes, const Budget& budgets, const TierPlan& plan) {
  int64_t bytes[3] = {};
  std::vector<int64_t> behind;
  ASSERT_EQ(plan.tier.size(), sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    bytes[static_cast<size_t>(plan.tier[i])] += sizes[i];
    if (plan.tier[i] != Tier::kDevice) behind.push_back(sizes[i]);
  }
  const auto within = [](int64_t got, int64_t budget) { return budget < 0 || got <= budget; };
  EXPECT_TRUE(within(bytes[0] + plan.device.slots * plan.device.slot_bytes, budgets.device));
  EXPECT_TRUE(within(bytes[1] + plan.host.slots * plan.host.slot_bytes, budgets.host));
  EXPECT_TRUE(within(bytes[2], budgets.disk));
  EXPECT_EQ(plan.host.slots == 0, bytes[2] == 0);

  Links links(sizes, plan);
  Pager(plan.device).step(links);
  EXPECT_EQ(links.steps, sizes.size());
  EXPECT_EQ(links.link_read, plan.device.read_bytes);
  EXPECT_EQ(links.link_written, plan.device.written_bytes);
  EXPECT_EQ(links.disk_read, plan.host.read_bytes);
  EXPECT_EQ(links.disk_written, plan.host.written_bytes);
  if (sizes.size() > 8) return;
  if (plan.device.slots > 0) {
    EXPECT_EQ(bytes[0], most_beside(sizes, plan.device.slots, budgets.device));
  }
  if (plan.host.slots > 0) {
    EXPECT_EQ(bytes[1], most_beside(behind, plan.host.slots, budgets.host));
  }
}

// N of "at least N bytes of WHAT", and WHAT.
std::pair<int64_t, std::string> advice_of(const std::string& message) {
  const size_t at = message.find("at least ");
  if (at == std::string::npos) return {-1, message};
  char* end = nullptr;
  const int64_t bytes = std::strtoll(message.c_str() + at + 9, &end, 10);
  return {bytes, end};
}

TEST(TierPlan, KeepsBudgetsAndMovesTheLeastOnEachLink) {
  Rng random = seeded("plans of three tiers", random_seed());
  const int cases = share_of(3000);
  int on_disk = 0, refused = 0;
  for (int i = 0; i < cases && !HasFailure(); ++i) {
    std::vector<int64_t> sizes(static_cast<size_t>(random.between(1, i % 2 == 0 ? 8 : 40)));
    for (int64_t& size : sizes) size = kPageBytes * random.between(1, i % 3 == 0 ? 1 : 9);
    const auto budget = [&] {
      return random.chance(0.125) ? -1 : kPageBytes * random.below(bytes_of_all(sizes) / kPageBytes + 2);
    };
    Budget budgets{budget(), budget(), budget()};
    const int max_slots = static_cast<int>(random.between(1, 5));
    bool was_refused = false;
    for (int tries = 0;; ++tries) {
      ASSERT_LT(tries, 4) << "what was advised did not suffice";
      try {
        const TierPlan plan = plan_tiers(sizes, budgets, max_slots);
        expect_tiers(sizes, budgets, plan);
        on_disk += plan.host.slots > 0;
        break;
      } catch (const Error& error) {
        ASSERT_EQ(error.kind(), ErrorKind::kInvalidArgument) << error.what();
        const auto [bytes, what] = advice_of(error.what());
        ASSERT_GE(bytes, 0) << error.what();
        int64_t& raised = what.starts_with(" bytes of device") ? budgets.device
                          : what.starts_with(" bytes of host") ? budgets.host
                                                               : budgets.disk;
        ASSERT_GT(bytes, raised) << error.what();
        raised = bytes;
        was_refused = true;
      }
    }
    refused += was_refused;
  }
  EXPECT_GT(on_disk, cases / 8);
  EXPECT_GT(refused, cases / 20);
  std::printf("%d plans, %d with chunks on disk, %d after advice: moved / planned = 1 on both links\n", cases, on_disk,
              refused);
}

TEST(TierPlan, IsThePlanOfTwoTiersWhereHostMemorySuffices) {
  const std::vector<int64_t> sizes(20, 4 * kPageBytes);
  PlanInput two;
  two.chunk_bytes = sizes;
  two.ram_budget = 40 * kPageBytes;
  two.has_disk = true;
  const Plan plan = make_plan(two);
  const TierPlan tiers = plan_tiers(sizes, {two.ram_budget, plan.streamed_bytes, 0});
  EXPECT_EQ(tiers.device.resident, plan.resident);
  EXPECT_EQ(tiers.device.slots, plan.slots);
  EXPECT_EQ(std::count(tiers.tier.begin(), tiers.tier.end(), Tier::kDisk), 0);
  EXPECT_EQ(tiers.host.read_bytes, 0);
}

// Three slots on the device leave nine chunks behind it. Host memory holds three beside the smallest ring, and the disk
// five: there is room for eight.
TEST(TierPlan, TakesSlotsOfTheDeviceWhereWhatIsBehindItDoesNotFit) {
  const std::vector<int64_t> sizes(12, kPageBytes);
  const Budget budgets{6 * kPageBytes, 4 * kPageBytes, 5 * kPageBytes};
  const TierPlan plan = plan_tiers(sizes, budgets);
  expect_tiers(sizes, budgets, plan);
  EXPECT_EQ(plan.device.slots, 2);
  EXPECT_EQ(plan.host.slots, 1);
  EXPECT_EQ(plan.host.read_bytes, 5 * kPageBytes);
}

// Four slots on the device and two in host memory hold it, too, but those two do not overlap.
TEST(TierPlan, PrefersThreeSlotsInHostMemoryToAFourthOnTheDevice) {
  const std::vector<int64_t> sizes(120, kPageBytes);
  const Budget budgets{10 * kPageBytes, 12 * kPageBytes, 104 * kPageBytes};
  const TierPlan plan = plan_tiers(sizes, budgets);
  expect_tiers(sizes, budgets, plan);
  EXPECT_EQ(plan.device.slots, 3);
  EXPECT_EQ(plan.host.slots, 3);
}

TEST(TierPlan, RefusesBudgetsThatAreNone) {
  EXPECT_THROW(plan_tiers({kPageBytes}, {-2, -1, -1}), Error);
  EXPECT_THROW(plan_tiers({kPageBytes}, {-1, -2, -1}), Error);
  EXPECT_THROW(plan_tiers({kPageBytes}, {-1, -1, -2}), Error);
  EXPECT_THROW(plan_tiers({kPageBytes}, {}, 0), Error);
}

}  // namespace
}  // namespace lowtide::testing
