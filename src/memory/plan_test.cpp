// Tests that a plan loses no chunk, stays within its budgets at every moment of a step, and moves no more than it must.
#include "memory/plan.h"

#include <list>

#include "memory/pager.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int64_t kPage = 4096;

int64_t sum(const std::vector<int64_t>& sizes) { return std::accumulate(sizes.begin(), sizes.end(), int64_t{0}); }

// Returns the input for chunks that are stepped in host memory and wait on disk.
PlanInput input_of(std::vector<int64_t> sizes, int64_t host, int64_t disk = -1) {
  return {std::move(sizes), {{Tier::kHost, host}, {Tier::kDisk, disk}}};
}

// Returns the input for chunks that are stepped on a device and wait in host memory or on disk.
PlanInput three_tiers(std::vector<int64_t> sizes, int64_t device, int64_t host, int64_t disk) {
  return {std::move(sizes), {{Tier::kDevice, device}, {Tier::kHost, host}, {Tier::kDisk, disk}}};
}

// Does all work at once, counts it, and computes the time that the queues and their one disk would have taken.
class Recorder : public Queues {
 public:
  Recorder(const PlanInput& input, const TierPlan& plan)
      : input_(input), plan_(plan), steps(input.chunk_bytes.size(), 0), holds_(static_cast<size_t>(plan.slots), -1) {}

  void read(int chunk, int slot) override {
    int& held = holds_.at(static_cast<size_t>(slot));
    EXPECT_EQ(held, -1) << "slot " << slot << " read into while in use";
    EXPECT_LE(size(chunk), plan_.slot_bytes);
    held = chunk;
    ++in_use_;
    peak_bytes = std::max(peak_bytes, plan_.resident_bytes + in_use_ * plan_.slot_bytes);
    bytes_read += size(chunk);
    use_disk(Queue::kIn, chunk, input_.tiers.back().read_rate);
  }
  void step(int chunk, int slot) override {
    EXPECT_EQ(slot == -1, plan_.resident.at(static_cast<size_t>(chunk)));
    if (slot >= 0) {
      EXPECT_EQ(holds_.at(static_cast<size_t>(slot)), chunk) << "stepped in a slot that holds another";
    }
    ++steps.at(static_cast<size_t>(chunk));
    peak_bytes = std::max(peak_bytes, plan_.resident_bytes + in_use_ * plan_.slot_bytes);
    if (input_.step_rate > 0) at(Queue::kStep) += static_cast<double>(size(chunk)) / input_.step_rate;
  }
  void write(int chunk, int slot) override {
    int& held = holds_.at(static_cast<size_t>(slot));
    EXPECT_EQ(held, chunk) << "written from a slot that holds another";
    held = -1;
    --in_use_;
    bytes_written += size(chunk);
    use_disk(Queue::kOut, chunk, input_.tiers.back().write_rate);
  }
  Event record(Queue queue) override {
    events_.push_back(at(queue));
    return static_cast<Event>(events_.size()) - 1;
  }
  void wait(Queue queue, Event event) override {
    if (event != kNone) at(queue) = std::max(at(queue), events_.at(static_cast<size_t>(event)));
  }

  double clock() const { return *std::max_element(clocks_, clocks_ + 3); }

 private:
  int64_t size(int chunk) const { return input_.chunk_bytes.at(static_cast<size_t>(chunk)); }
  double& at(Queue queue) { return clocks_[static_cast<int>(queue)]; }
  void use_disk(Queue queue, int chunk, double rate) {
    if (rate <= 0) return;
    disk_ = at(queue) = std::max(disk_, at(queue)) + static_cast<double>(size(chunk)) / rate;
  }

  const PlanInput& input_;
  const TierPlan& plan_;

 public:
  std::vector<int> steps;  // number of steps of each chunk
  int64_t bytes_read = 0, bytes_written = 0, peak_bytes = 0;

 private:
  std::vector<int> holds_;  // the chunk in each slot
  int64_t in_use_ = 0;
  std::vector<double> events_;
  double clocks_[3] = {0, 0, 0}, disk_ = 0;
};

// Returns the most resident bytes that any set has beside a ring of `slots` slots, or -1 if there is no such set.
int64_t most_resident(const std::vector<int64_t>& sizes, int slots, int64_t budget) {
  int64_t best = -1;
  for (unsigned set = 0; set + 1 < 1u << sizes.size(); ++set) {
    int64_t resident = 0, largest = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (set >> i & 1) {
        resident += sizes[i];
      } else {
        largest = std::max(largest, sizes[i]);
      }
    }
    if (resident + slots * largest <= budget) best = std::max(best, resident);
  }
  return best;
}

// Checks everything that must be true of any plan, and of the steps of a pager that follows it.
void expect_sound(const PlanInput& input, const Plan& tiers) {
  constexpr int kSteps = 2;
  const size_t n = input.chunk_bytes.size();
  ASSERT_EQ(tiers.tiers.size(), input.tiers.size());
  ASSERT_EQ(tiers.tier.size(), n);
  std::vector<int64_t> sizes = input.chunk_bytes;  // of the chunks that are not in a nearer tier
  std::vector<Tier> where(n, input.tiers[0].tier);
  for (size_t t = 0; t < input.tiers.size(); ++t) {
    const TierPlan& here = tiers.tiers[t];
    const int64_t limit = input.tiers[t].bytes, total = sum(sizes);
    ASSERT_EQ(here.resident.size(), n);
    std::vector<int> streamed;
    std::vector<int64_t> behind = sizes;
    int64_t largest = 0;
    for (size_t i = 0; i < n; ++i) {
      if (here.resident[i]) {
        behind[i] = 0;
        continue;
      }
      streamed.push_back(static_cast<int>(i));
      largest = std::max(largest, sizes[i]);
      where[i] = input.tiers.at(t + 1).tier;
    }
    const int64_t resident = total - sum(behind);
    EXPECT_EQ(here.streamed, streamed) << "a chunk lost or doubled";
    EXPECT_EQ(here.resident_bytes, resident);
    EXPECT_EQ(here.streamed_bytes, total - resident);
    EXPECT_EQ(here.slot_bytes, largest);
    EXPECT_EQ(here.bytes, resident + here.slots * here.slot_bytes);
    EXPECT_EQ(here.slots == 0, streamed.empty());
    EXPECT_TRUE(limit < 0 || here.bytes <= limit);
    if (here.slots > 0) {
      EXPECT_LE(here.slots, input.max_slots);
      EXPECT_LT(static_cast<size_t>(here.slots), streamed.size());
      EXPECT_GT(total, limit);
      if (n <= 8) {
        EXPECT_EQ(resident, most_resident(sizes, here.slots, limit));
      }
    }
    sizes = behind;
  }
  EXPECT_EQ(tiers.tier, where);
  const TierPlan& plan = tiers.tiers[0];
  const int64_t total = sum(input.chunk_bytes), resident = plan.resident_bytes;

  Recorder queues(input, plan);
  Pager pager(plan);
  for (int s = 0; s < kSteps; ++s) pager.step(queues);
  EXPECT_EQ(queues.steps, std::vector<int>(n, kSteps)) << "a chunk not stepped once a step";
  EXPECT_EQ(queues.bytes_read + queues.bytes_written, kSteps * 2 * (total - resident));
  EXPECT_EQ(queues.peak_bytes, n == 0 ? 0 : plan.bytes);
}

enum class Sizes { kEqual, kEqualButLast, kFew, kAny, kCount };

std::vector<int64_t> random_sizes(Rng& rng, Sizes kind, int64_t n) {
  std::vector<int64_t> sizes;
  const int64_t one = rng.between(1, 64), few[3] = {rng.between(1, 64), rng.between(1, 64), rng.between(1, 4)};
  for (int64_t i = 0; i < n; ++i) {
    const int64_t pages = kind == Sizes::kAny ? rng.between(0, 64) : kind == Sizes::kFew ? few[rng.below(3)] : one;
    sizes.push_back(pages * kPage);
  }
  if (kind == Sizes::kEqualButLast && n > 0) sizes.back() = rng.between(0, one) * kPage;
  return sizes;
}

// Makes the plan. If it is refused, makes it with the bytes that the message asks for, and returns false.
bool plan_or_repair(PlanInput& input, Plan* plan) {
  try {
    *plan = make_plan(input);
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    const std::string what = error.what();
    const size_t at = what.find("at least "), unit = what.find(" bytes of ", at);
    if (at == std::string::npos || unit == std::string::npos) {
      ADD_FAILURE() << "no number of bytes in: " << what;
      throw;
    }
    const int64_t needed = std::stoll(what.substr(at + 9));
    const char* const names[] = {" bytes of device memory", " bytes of host memory", " bytes of disk"};
    int64_t* found = nullptr;
    for (TierLimit& limit : input.tiers)
      if (what.substr(unit).starts_with(names[static_cast<size_t>(limit.tier)])) found = &limit.bytes;
    if (!found) throw;
    int64_t& budget = *found;
    EXPECT_LT(budget, needed) << what;
    expect_in(std::to_string(budget) + " bytes (", what);  // the message says what it got
    if (input.tiers.size() < 3) {                          // with three tiers, a different ring could need less
      budget = needed - 1;
      EXPECT_THROW(make_plan(input), Error) << "one byte less is enough: " << what;
    }
    budget = needed;
    plan_or_repair(input, plan);  // the next tier may still have too little
    return false;
  }
}

TEST(Plan, IsSoundWhateverTheSizesAndBudgets) {
  Rng rng = seeded("random plans", 20263);
  int plans = 0, resident = 0, mixed = 0, repaired = 0, empty = 0, on_third = 0, rings[7] = {};
  for (; plans < 20000; ++plans) {
    const Sizes kind = static_cast<Sizes>(rng.below(static_cast<int64_t>(Sizes::kCount)));
    const int64_t n = rng.chance(0.1) ? rng.below(3) : rng.below(rng.chance(0.2) ? 150 : 40);
    std::vector<int64_t> sizes = random_sizes(rng, kind, n);
    const int64_t total = sum(sizes);
    const int64_t host = rng.chance(0.05) ? -1 : rng.chance(0.1) ? total - rng.below(2) : rng.below(total + 2);
    PlanInput input = input_of(std::move(sizes), std::max<int64_t>(host, -1));
    if (rng.chance(0.1))
      input.tiers.pop_back();
    else if (rng.chance(0.3))
      input.tiers.back().bytes = rng.below(total + 1);
    if (input.tiers.size() == 2 && rng.chance(0.2))
      input.tiers.insert(input.tiers.begin(), {Tier::kDevice, rng.chance(0.1) ? -1 : rng.below(total + 2)});
    input.max_slots = static_cast<int>(rng.between(1, 6));
    Plan plan;
    if (!plan_or_repair(input, &plan)) ++repaired;
    expect_sound(input, plan);
    if (HasFailure()) {
      FAIL() << "plan " << plans << " of this seed, budget " << input.tiers[0].bytes << " of " << total;
    }
    const int slots = plan.tiers[0].slots;
    ++rings[slots];
    if (input.chunk_bytes.empty()) ++empty;
    if (slots == 0) ++resident;
    if (slots > 0 && plan.tiers[0].resident_bytes > 0) ++mixed;
    if (input.tiers.size() == 3 && plan.tiers[1].slots > 0) ++on_third;
  }
  std::printf(
      "%d plans, each two steps: chunks lost or doubled 0, bytes above a budget 0, bytes moved = 2 * (total - "
      "resident)\n  all resident %d (no chunks %d), some resident %d, refused and made with the bytes asked for %d\n"
      "  on a third tier, too, %d; rings of 1..6 slots: %d %d %d %d %d %d\n",
      plans, resident, empty, mixed, repaired, on_third, rings[1], rings[2], rings[3], rings[4], rings[5], rings[6]);
  for (int slots = 0; slots <= 6; ++slots) EXPECT_GT(rings[slots], 20) << slots << " slots";
  EXPECT_GT(mixed, 5000);
  EXPECT_GT(on_third, 500);
  EXPECT_GT(repaired, 1000);
  EXPECT_GT(empty, 100);
}

// For equal chunks the whole plan is known in advance.
TEST(Plan, KeepsTheLargestMultipleOfEqualChunksAtEveryBudget) {
  int plans = 0, fourth = 0;
  for (const int64_t chunk : {kPage, 5 * kPage, int64_t{16} << 20}) {
    for (const int64_t n : {1, 2, 3, 4, 5, 17, 100}) {
      for (const int max_slots : {1, 2, 3, 4}) {
        int64_t before = n * chunk;
        for (int64_t budget = 0; budget <= (n + 1) * chunk; budget += chunk / 4) {
          for (const int64_t ram : {budget - 1, budget, budget + 1}) {
            if (ram < 0) continue;
            PlanInput input = input_of(std::vector<int64_t>(static_cast<size_t>(n), chunk), ram);
            input.max_slots = max_slots;
            const int64_t fit = ram / chunk;
            ++plans;
            if (fit == 0) {
              EXPECT_THROW(make_plan(input), Error);
              continue;
            }
            const Plan tiers = make_plan(input);
            expect_sound(input, tiers);
            const TierPlan& plan = tiers.tiers[0];
            if (fit >= n) {
              EXPECT_EQ(plan.resident_bytes, n * chunk);
            } else {
              EXPECT_GE(plan.slots, std::min({fit, int64_t{3}, int64_t{max_slots}}));
              EXPECT_EQ(plan.resident_bytes, (fit - plan.slots) * chunk);
              if (plan.slots == 4) {  // only at the price that plan.h allows
                ++fourth;
                EXPECT_LE(16 * chunk, plan.streamed_bytes - chunk);
              }
            }
            EXPECT_LE(plan.streamed_bytes, before) << "more memory, more traffic";
            before = plan.streamed_bytes;
            if (HasFailure()) FAIL() << n << " chunks of " << chunk << ", budget " << ram << ", " << max_slots;
          }
        }
      }
    }
  }
  figure("{} plans of equal chunks, budgets from 0 to everything: resident is the largest multiple in all", plans);
  EXPECT_GT(plans, 5000);
  EXPECT_GT(fourth, 100);
}

TEST(Plan, KeepsAsMuchAsAnySetOfChunksOfMixedSizes) {
  Rng rng = seeded("exhaustive search over resident sets", 20264);
  int plans = 0, shrunk = 0;
  while (plans < 2000) {
    PlanInput input = input_of({}, 0);
    input.chunk_bytes = random_sizes(rng, rng.chance(0.5) ? Sizes::kAny : Sizes::kFew, rng.between(2, 9));
    std::erase(input.chunk_bytes, 0);
    if (rng.chance(0.3)) input.chunk_bytes.push_back(rng.between(100, 400) * kPage);  // one much larger chunk
    const int64_t total = sum(input.chunk_bytes);
    if (total == 0) continue;
    const int64_t budget = input.tiers[0].bytes = rng.below(total);
    input.max_slots = static_cast<int>(rng.between(1, 4));
    const int64_t largest = *std::max_element(input.chunk_bytes.begin(), input.chunk_bytes.end());
    if (budget < largest) continue;
    const Plan tiers = make_plan(input);
    expect_sound(input, tiers);
    const TierPlan& plan = tiers.tiers[0];
    EXPECT_EQ(plan.resident_bytes, most_resident(input.chunk_bytes, plan.slots, budget));
    for (int more = plan.slots + 1; more <= std::min(input.max_slots, 3); ++more) {
      EXPECT_EQ(most_resident(input.chunk_bytes, more, budget), -1) << "the budget holds a better ring";
    }
    if (HasFailure()) FAIL() << "plan " << plans << " of this seed";
    ++plans;
    if (plan.slot_bytes < largest) ++shrunk;
  }
  figure(
      "{} plans of mixed sizes: as many resident bytes as the best of all sets; slots made smaller by keeping the "
      "largest chunks in {}",
      plans, shrunk);
  EXPECT_GT(shrunk, 200);
}

// Returns the bytes that a write-back cache with least-recently-used eviction moves per step in its steady state.
int64_t lru_traffic(const std::vector<int64_t>& sizes, int64_t capacity) {
  constexpr int kWarm = 2, kCounted = 2;
  std::list<size_t> cached;  // most recent first
  int64_t held = 0, moved = 0;
  for (int s = 0; s < kWarm + kCounted; ++s) {
    if (s == kWarm) moved = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      const auto hit = std::find(cached.begin(), cached.end(), i);
      if (hit != cached.end()) {
        cached.splice(cached.begin(), cached, hit);
        continue;
      }
      for (; held + sizes[i] > capacity; cached.pop_back()) {
        held -= sizes[cached.back()];
        moved += sizes[cached.back()];
      }
      cached.push_front(i);
      held += sizes[i];
      moved += sizes[i];
    }
  }
  return moved / kCounted;
}

TEST(Plan, MovesLessThanLeastRecentlyUsedInTheSameBytes) {
  Rng rng = seeded("plans against least recently used", 20265);
  constexpr int64_t kChunk = int64_t{16} << 20;
  std::printf("GiB moved per step, 64 chunks of 16 MiB:\n  %-10s %6s %6s\n", "host", "plan", "LRU");
  for (const int64_t fit : {1, 2, 3, 8, 16, 32, 48, 60, 63, 64}) {
    const PlanInput input = input_of(std::vector<int64_t>(64, kChunk), fit * kChunk);
    const TierPlan plan = make_plan(input).tiers[0];
    const int64_t lru = lru_traffic(input.chunk_bytes, fit * kChunk);
    figure("  {} chunks  {} {}", fit, static_cast<double>(2 * plan.streamed_bytes) / (1 << 30),
           static_cast<double>(lru) / (1 << 30));
    EXPECT_EQ(lru, fit == 64 ? 0 : 2 * 64 * kChunk);
    EXPECT_EQ(plan.streamed_bytes, fit == 64 ? 0 : (64 - fit + plan.slots) * kChunk);
  }
  double moved = 0, lru_moved = 0;
  int plans = 0;
  while (plans < 1000) {
    PlanInput input = input_of(random_sizes(rng, Sizes::kAny, rng.between(20, 60)), 0);
    const int64_t total = sum(input.chunk_bytes);
    input.tiers[0].bytes = rng.between(total / 10, total - 1);
    Plan plan;
    plan_or_repair(input, &plan);
    const int64_t lru = lru_traffic(input.chunk_bytes, input.tiers[0].bytes);
    EXPECT_LE(2 * plan.tiers[0].streamed_bytes, lru);
    moved += static_cast<double>(2 * plan.tiers[0].streamed_bytes) / static_cast<double>(total);
    lru_moved += static_cast<double>(lru) / static_cast<double>(total);
    ++plans;
  }
  figure("{} random mixes, bytes moved per step / bytes of state: plan {}, LRU {}", plans, moved / plans,
         lru_moved / plans);
  EXPECT_LT(moved, 0.75 * lru_moved);
}

TEST(Plan, HoldsAtTheEdges) {
  const auto plan_of = [](std::vector<int64_t> sizes, int64_t ram) {
    const PlanInput input = input_of(std::move(sizes), ram);
    const Plan plan = make_plan(input);
    expect_sound(input, plan);
    return plan.tiers[0];
  };
  EXPECT_EQ(plan_of({}, 0).slots, 0);
  EXPECT_EQ(plan_of({}, -1).bytes, 0);
  EXPECT_EQ(plan_of({0, 0, 0}, 0).bytes, 0);  // nothing to hold, nothing to move
  EXPECT_EQ(plan_of({kPage}, kPage).slots, 0);
  EXPECT_THROW(plan_of({kPage}, kPage - 1), Error);  // a chunk cannot be streamed through less than its size
  EXPECT_EQ(plan_of({kPage, kPage}, kPage).slots, 1);
  EXPECT_EQ(plan_of({kPage, kPage}, 2 * kPage).slots, 0);
  EXPECT_EQ(plan_of({kPage, kPage}, 2 * kPage - 1).slots, 1);
  EXPECT_EQ(plan_of({0, kPage, 0, kPage}, kPage).streamed, (std::vector<int>{1, 3}));
  const std::vector<int64_t> sizes = {7 * kPage, kPage, 3 * kPage, 3 * kPage};
  EXPECT_EQ(plan_of(sizes, sum(sizes)).slots, 0);
  EXPECT_EQ(plan_of(sizes, -1).slots, 0);
  // One byte short: the largest chunk stays, which leaves room for two small slots.
  EXPECT_EQ(plan_of(sizes, sum(sizes) - 1).slots, 2);
  EXPECT_EQ(plan_of(sizes, sum(sizes) - 1).resident_bytes, 7 * kPage);
  const int64_t huge = int64_t{1} << 55;
  EXPECT_EQ(plan_of({huge, huge}, huge).slots, 1);
  EXPECT_EQ(plan_of({huge, huge}, std::numeric_limits<int64_t>::max()).slots, 0);
}

TEST(Plan, RefusesValuesOutOfRange) {
  const auto valid = [] { return input_of({kPage, 2 * kPage, kPage}, 2 * kPage); };
  EXPECT_NO_THROW(make_plan(valid()));
  std::vector<PlanInput> wrong(16, valid());
  wrong[0].chunk_bytes[1] = -kPage;
  wrong[1].chunk_bytes[1] = kPage + 1;
  wrong[2].tiers[0].bytes = -2;
  wrong[3].tiers[1].bytes = -2;
  wrong[4].max_slots = -1;
  wrong[5].max_slots = 65;
  wrong[6].tiers[1].read_rate = -1;
  wrong[7].tiers[1].write_rate = std::nan("");
  wrong[8].step_rate = std::numeric_limits<double>::infinity();
  wrong[9].chunk_bytes = {int64_t{1} << 56, kPage};
  wrong[10].chunk_bytes.assign(4, int64_t{1} << 62);  // the sum overflows
  wrong[11].tiers.pop_back();
  wrong[12].tiers[1].bytes = 0;
  wrong[13].tiers[0].taken = -1;
  wrong[14].tiers.insert(wrong[14].tiers.begin(), {Tier::kDevice, -2});
  wrong[15].tiers.insert(wrong[15].tiers.begin(), {Tier::kDevice, 2 * kPage}), wrong[15].max_slots = 0;
  for (size_t i = 0; i < wrong.size(); ++i) {
    SCOPED_TRACE(i);
    refusal([&] { make_plan(wrong[i]); });
  }
  figure("inputs refused: {}", wrong.size());
}

// Without a ring, the whole budget is for resident chunks: the best set stays, and with a budget of 0 no chunk does.
TEST(Plan, WithoutARingTheBudgetIsForResidentsAlone) {
  Rng rng = seeded("plans without a ring", 20267);
  int plans = 0, exact = 0;
  for (; plans < 2000; ++plans) {
    PlanInput input = input_of({}, 0);
    for (int64_t n = rng.between(1, 10); n > 0; --n) input.chunk_bytes.push_back(rng.between(0, 6) * kPage);
    const int64_t budget = input.tiers[0].bytes = plans % 10 == 0 ? 0 : rng.between(0, sum(input.chunk_bytes));
    input.max_slots = 0;
    const TierPlan plan = make_plan(input).tiers[0];
    EXPECT_EQ(plan.slots, 0);
    EXPECT_EQ(plan.bytes, plan.resident_bytes);
    EXPECT_LE(plan.bytes, budget);
    EXPECT_EQ(plan.resident_bytes + plan.streamed_bytes, sum(input.chunk_bytes));
    int64_t best = 0;
    for (unsigned set = 0; set < 1u << input.chunk_bytes.size(); ++set) {
      int64_t bytes = 0;
      for (size_t i = 0; i < input.chunk_bytes.size(); ++i) bytes += set >> i & 1 ? input.chunk_bytes[i] : 0;
      if (bytes <= budget) best = std::max(best, bytes);
    }
    EXPECT_EQ(plan.resident_bytes, best);
    exact += plan.resident_bytes == best;
    input.tiers[1].bytes = plan.streamed_bytes;
    EXPECT_NO_THROW(make_plan(input));
    if (plan.streamed_bytes == 0) continue;
    --input.tiers[1].bytes;
    EXPECT_THROW(make_plan(input), Error);
  }
  figure("{} plans without a ring, {} of them with as much as any set of chunks", plans, exact);
}

// The predicted time matches the clocks of the queues and of a disk that serves requests in the order of their arrival.
TEST(Plan, PredictsTheSecondsOfAStep) {
  Rng rng = seeded("predicted seconds", 20266);
  int plans = 0, disk_bound = 0;
  double worst = 0;
  for (; plans < 1000; ++plans) {
    const int64_t chunk = rng.between(1, 64) * kPage, n = rng.between(5, 400);
    PlanInput input = input_of(std::vector<int64_t>(static_cast<size_t>(n), chunk), chunk * rng.between(1, n - 1));
    TierLimit& disk = input.tiers[1];
    disk.read_rate = 1e9 * (0.5 + rng.uniform());
    disk.write_rate = 1e9 * (0.5 + rng.uniform());
    input.step_rate = 1e9 * (0.2 + 2 * rng.uniform());
    const Plan plan = make_plan(input);
    const TierPlan& host = plan.tiers[0];
    Recorder queues(input, host);
    Pager(host).step(queues);
    const double size = static_cast<double>(chunk);
    const double one = size / disk.read_rate + size / disk.write_rate + size / input.step_rate;
    EXPECT_NEAR(queues.clock(), plan.seconds, one) << host.slots << " slots of " << n << " chunks";
    if (host.slots > 1) {
      EXPECT_GE(queues.clock(), plan.seconds * (1 - 1e-9));
      if (plan.seconds > static_cast<double>(n * chunk) / input.step_rate) ++disk_bound;
    }
    worst = std::max(worst, std::abs(queues.clock() - plan.seconds) / one);

    EXPECT_GT(plan.seconds, 0);
    for (const int which : {0, 1, 2}) {
      PlanInput unknown = input;
      (which == 0 ? unknown.tiers[1].read_rate : which == 1 ? unknown.tiers[1].write_rate : unknown.step_rate) = 0;
      EXPECT_EQ(make_plan(unknown).seconds, 0);
      unknown.tiers[0].bytes = -1;  // no disk in use
      EXPECT_EQ(make_plan(unknown).seconds == 0, unknown.step_rate == 0);
    }
  }
  figure("{} predictions, {} of them bound by the disk: off by {} times one chunk's read + step + write at most", plans,
         disk_bound, worst);
  EXPECT_GT(disk_bound, 100);
  EXPECT_LT(disk_bound, plans - 100);
}

// An exact search would take too long here: with many sizes, whose sums reach every number, and with two almost equal
// sizes, whose sums leave gaps.
TEST(Plan, FillsALargeBudgetAlmostWhole) {
  Rng rng = seeded("large plans", 20267);
  constexpr int64_t kFull = int64_t{16} << 20;
  int64_t worst[3] = {0, 0, 0};
  int plans = 0;
  for (; plans < 12; ++plans) {
    const int kind = plans % 3;  // 0: any sizes; 1: a tenth of the chunks is not full; 2: full or one page less
    PlanInput input = input_of({}, 0);
    for (int i = 0; i < 30000; ++i) {
      const int64_t other = kind == 2 ? kFull - kPage : rng.between(1, 4096) * kPage;
      input.chunk_bytes.push_back(rng.chance(kind == 0 ? 0 : kind == 1 ? 0.9 : 0.5) ? kFull : other);
    }
    input.tiers[0].bytes =
        static_cast<int64_t>(static_cast<double>(sum(input.chunk_bytes)) * (0.05 + 0.9 * rng.uniform()));
    const Plan plan = make_plan(input);
    expect_sound(input, plan);
    worst[kind] = std::max(worst[kind], input.tiers[0].bytes - plan.tiers[0].bytes);
  }
  figure("{} plans of 30000 chunks: at most {} and {} bytes of the budget unused; {} where sums leave gaps", plans,
         worst[0], worst[1], worst[2]);
  EXPECT_LT(worst[0], kPage);
  EXPECT_LT(worst[1], kPage);
  EXPECT_LT(worst[2], kFull);
}

TEST(Plan, IsThePlanOfTwoTiersWhereHostMemorySuffices) {
  const std::vector<int64_t> sizes(20, 4 * kPage);
  PlanInput two = three_tiers(sizes, 40 * kPage, -1, 0);
  two.tiers.pop_back();
  const Plan plan = make_plan(two);
  const Plan three = make_plan(three_tiers(sizes, 40 * kPage, plan.tiers[0].streamed_bytes, 0));
  EXPECT_EQ(three.tiers[0].resident, plan.tiers[0].resident);
  EXPECT_EQ(three.tiers[0].slots, plan.tiers[0].slots);
  EXPECT_EQ(three.tier, plan.tier);
  EXPECT_EQ(three.tiers[1].streamed_bytes, 0);
}

// With three slots on the device, nine chunks remain. Host memory holds three chunks beside the smallest ring and the
// disk holds five, so there is room for only eight.
TEST(Plan, TakesSlotsOfTheDeviceWhereWhatIsBehindItDoesNotFit) {
  const std::vector<int64_t> sizes(12, kPage);
  const PlanInput input = three_tiers(sizes, 6 * kPage, 4 * kPage, 5 * kPage);
  const Plan plan = make_plan(input);
  expect_sound(input, plan);
  EXPECT_EQ(plan.tiers[0].slots, 2);
  EXPECT_EQ(plan.tiers[1].slots, 1);
  EXPECT_EQ(plan.tiers[1].streamed_bytes, 5 * kPage);
}

// Four slots on the device and two in host memory would also hold the state, but with only two slots reading, stepping
// and writing cannot overlap.
TEST(Plan, PrefersThreeSlotsInHostMemoryToAFourthOnTheDevice) {
  const std::vector<int64_t> sizes(120, kPage);
  const PlanInput input = three_tiers(sizes, 10 * kPage, 12 * kPage, 104 * kPage);
  const Plan plan = make_plan(input);
  expect_sound(input, plan);
  EXPECT_EQ(plan.tiers[0].slots, 3);
  EXPECT_EQ(plan.tiers[1].slots, 3);
}

// The link moves bytes both ways at once, and the disk reads and writes in turn. The longest time is the step's time.
TEST(Plan, PredictsEachLinkAndTheLongestOfAll) {
  PlanInput input = three_tiers(std::vector<int64_t>(120, kPage), 10 * kPage, 12 * kPage, -1);
  input.step_rate = 1e9;
  input.tiers[1].read_rate = 2e8, input.tiers[1].write_rate = 1e8;
  input.tiers[2].read_rate = 4e7, input.tiers[2].write_rate = 2e7;
  const Plan plan = make_plan(input);
  const auto link = static_cast<double>(plan.tiers[0].streamed_bytes);
  const auto disk = static_cast<double>(plan.tiers[1].streamed_bytes);
  EXPECT_DOUBLE_EQ(plan.link_seconds, link / 1e8);
  EXPECT_DOUBLE_EQ(plan.disk_seconds, disk / 4e7 + disk / 2e7);
  EXPECT_DOUBLE_EQ(plan.seconds, plan.disk_seconds);
  input.tiers[2].read_rate = 0;
  EXPECT_EQ(make_plan(input).disk_seconds, 0);
  EXPECT_EQ(make_plan(input).seconds, 0);
}

}  // namespace
}  // namespace lowtide::testing
