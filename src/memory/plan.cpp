#include "memory/plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "core/buffer.h"
#include "core/error.h"
#include "core/sizes.h"

namespace lowtide {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 56;  // in total, so slots * slot_bytes cannot overflow
constexpr int kMostSlots = 64;
constexpr int kSlots = 4;  // slots of a store's rings
constexpr int64_t kSmallestChunk = 64 << 10;
constexpr int64_t kMostChunks = int64_t{1} << 22;  // takes a gigabyte of bookkeeping
// Bounds of the search for the resident set, which takes milliseconds for realistic sizes and at most 8 MiB of memory.
constexpr int64_t kMostUnits = int64_t{1} << 20;  // largest sum in units
constexpr int64_t kMostWork = int64_t{1} << 24;   // units * sizes of one subset sum
constexpr int kMostTries = 16;                    // number of slot sizes tried

struct SizeClass {
  int64_t bytes;  // size of each chunk, above 0
  int64_t count;
};

// The number of chunks of each class that stay resident.
struct Choice {
  std::vector<int64_t> keep;
  int64_t bytes = 0;
};

// Chooses chunks with as many bytes as fit into `capacity`. Exact within the bounds above.
Choice fill(std::span<const SizeClass> classes, int64_t capacity) {
  Choice choice{std::vector<int64_t>(classes.size(), 0)};
  int64_t unit = 0;
  for (const SizeClass& c : classes) unit = std::gcd(unit, c.bytes);
  int64_t room = capacity / unit;
  const int64_t most = std::clamp(kMostWork / static_cast<int64_t>(classes.size()), int64_t{1}, kMostUnits);
  for (size_t i = classes.size(); i-- > 0 && room > most;) {
    const int64_t width = classes[i].bytes / unit;
    choice.keep[i] = std::min({classes[i].count, room / width, (room - most + width - 1) / width});
    room -= choice.keep[i] * width;
  }
  if (room <= most) {  // otherwise no remaining chunk fits
    // from[c] is the class of the chunk that completed the sum c, and used[c] is how many chunks of that class the sum
    // uses. A sum keeps the first class that reached it, so tracing back never uses more chunks of a class than exist.
    const int32_t unreached = -1, start = static_cast<int32_t>(classes.size());
    std::vector<int32_t> from(static_cast<size_t>(room) + 1, unreached), used(from.size(), 0);
    from[0] = start;
    for (size_t i = classes.size(); i-- > 0 && from.back() == unreached;) {
      const int64_t left = classes[i].count - choice.keep[i];
      const size_t width = static_cast<size_t>(classes[i].bytes / unit);
      const int32_t self = static_cast<int32_t>(i);
      for (size_t c = width; c < from.size(); ++c) {
        const size_t before = c - width;
        if (from[c] != unreached || from[before] == unreached) continue;
        const int32_t n = from[before] == self ? used[before] + 1 : 1;
        if (n > left) continue;
        from[c] = self;
        used[c] = n;
      }
    }
    size_t sum = from.size() - 1;
    while (from[sum] == unreached) --sum;
    while (sum > 0) {
      const size_t i = static_cast<size_t>(from[sum]);
      ++choice.keep[i];
      sum -= static_cast<size_t>(classes[i].bytes / unit);
    }
  }
  for (size_t i = 0; i < classes.size(); ++i) choice.bytes += choice.keep[i] * classes[i].bytes;
  return choice;
}

// Returns the resident set with the most bytes beside a ring of `slots` slots, or nothing if the budget cannot hold
// such a ring. For each possible slot size, larger chunks must be resident and the others may be. Sizes are tried in
// ascending order: when the budget minus the slots is no more than the best set so far, larger slots cannot be better.
std::optional<Choice> choose(std::span<const SizeClass> classes, int64_t slots, int64_t budget) {
  std::optional<Choice> best;
  int64_t larger = 0;  // bytes of all chunks larger than the slot
  for (const SizeClass& c : classes) larger += c.bytes * c.count;
  int tries = 0;
  for (size_t i = 0; i < classes.size() && tries < kMostTries; ++i) {
    larger -= classes[i].bytes * classes[i].count;
    const int64_t beside = budget - slots * classes[i].bytes;
    if (best && best->bytes >= beside) break;
    if (beside < larger) continue;
    ++tries;
    Choice choice = fill(classes.first(i + 1), beside - larger);
    choice.bytes += larger;
    for (size_t k = i + 1; k < classes.size(); ++k) choice.keep.push_back(classes[k].count);
    if (!best || choice.bytes > best->bytes) best = std::move(choice);
  }
  return best;
}

std::string exact(int64_t bytes) { return format("%lld bytes (%s)", ll(bytes), format_bytes(bytes).c_str()); }

const char* name_of(Tier tier) {
  return tier == Tier::kDevice ? "device memory" : tier == Tier::kHost ? "host memory" : "disk";
}

std::string budget_text(const TierLimit& limit) {
  const std::string whole = exact(limit.bytes);
  return limit.taken == 0 ? whole : whole + ", of which other state has " + exact(limit.taken);
}

int64_t sum_of(const std::vector<int64_t>& chunks) { return std::accumulate(chunks.begin(), chunks.end(), int64_t{0}); }

void check(const PlanInput& input) {
  for (const TierLimit& limit : input.tiers) {
    LT_REQUIRE(limit.bytes >= -1 && limit.taken >= 0,
               "got a budget of %lld bytes of %s, wanted 0 or more, or -1 for no limit", ll(limit.bytes),
               name_of(limit.tier));
    for (const double rate : {limit.read_rate, limit.write_rate, input.step_rate})
      LT_REQUIRE(std::isfinite(rate) && rate >= 0, "got a rate of %g bytes/s, wanted a finite one, or 0 for unknown",
                 rate);
  }
  LT_REQUIRE(input.max_slots >= 0 && input.max_slots <= kMostSlots, "got max_slots=%d, wanted 0 to %d", input.max_slots,
             kMostSlots);
  LT_REQUIRE(
      input.max_slots > 0 || input.tiers.size() <= 2,
      "got chunks to step in place on %zu tiers, wanted 2 at most: chunks on a third tier cannot be stepped there",
      input.tiers.size());
  LT_REQUIRE(input.chunk_bytes.size() <= size_t{1} << 30, "got %zu chunks, wanted 2^30 at most",
             input.chunk_bytes.size());
  int64_t total = 0;
  for (size_t i = 0; i < input.chunk_bytes.size(); ++i) {
    const int64_t bytes = input.chunk_bytes[i];
    LT_REQUIRE(bytes >= 0 && bytes % kPageBytes == 0,
               "got %lld bytes for chunk %zu; chunks are multiples of %lld bytes", ll(bytes), i, ll(kPageBytes));
    LT_REQUIRE(bytes <= kMostBytes - total, "got more than %s of state in all", exact(kMostBytes).c_str());
    total += bytes;
  }
}

void predict_seconds(const PlanInput& input, Plan& plan) {
  bool known = input.step_rate > 0;
  if (known) plan.step_seconds = static_cast<double>(sum_of(input.chunk_bytes)) / input.step_rate;
  double seconds = plan.step_seconds;
  for (size_t i = 0; i + 1 < input.tiers.size(); ++i) {
    const TierPlan& here = plan.tiers[i];
    const TierLimit& behind = input.tiers[i + 1];
    const auto bytes = static_cast<double>(here.streamed_bytes);
    if (bytes == 0) continue;
    if (behind.read_rate == 0 || behind.write_rate == 0) {
      known = false;
      continue;
    }
    const double read = bytes / behind.read_rate, write = bytes / behind.write_rate;
    const bool both_ways = input.tiers[i].tier == Tier::kDevice;
    const double moving = both_ways ? std::max(read, write) : read + write;
    (both_ways ? plan.link_seconds : plan.disk_seconds) = moving;
    seconds = std::max(seconds, moving);
    if (here.slots == 1) seconds = std::max(seconds, plan.step_seconds + read + write);
    if (here.slots > 1 && known)
      seconds = std::max(seconds, (read + bytes / input.step_rate + write) / static_cast<double>(here.slots));
  }
  if (known) plan.seconds = seconds;
}

// The plans of some tiers, or the reason why there are none.
struct Division {
  std::vector<TierPlan> tiers = {};
  std::string problem = {};
};

Division divide(std::span<const TierLimit> tiers, const std::vector<int64_t>& chunk_bytes, const PlanInput& input);

// Keeps the chosen number of chunks of each class in the first of these tiers, beside `slots` slots, and the other
// chunks in the tiers behind it.
Division keep(std::span<const TierLimit> tiers, const std::vector<int64_t>& chunk_bytes, const PlanInput& input,
              std::span<const SizeClass> classes, const Choice& choice, int slots) {
  std::map<int64_t, int64_t> left;  // still to keep
  for (size_t i = 0; i < classes.size(); ++i) left[classes[i].bytes] = choice.keep[i];
  std::vector<bool> resident;
  for (const int64_t bytes : chunk_bytes) resident.push_back(bytes == 0 || left[bytes]-- > 0);
  TierPlan here = plan_keeping(std::move(resident), chunk_bytes, slots);
  const TierLimit &limit = tiers[0], &behind = tiers[1];
  if (tiers.size() == 2 && behind.bytes >= 0 && here.streamed_bytes > behind.bytes)
    return {
        {},
        format("%s of state do not fit in the %s budget of %s, and the %s budget is %s; give at least %lld bytes of "
               "%s, or more %s",
               exact(sum_of(chunk_bytes)).c_str(), name_of(limit.tier), budget_text(limit).c_str(),
               name_of(behind.tier), exact(behind.bytes).c_str(), ll(here.streamed_bytes), name_of(behind.tier),
               name_of(limit.tier))};
  std::vector<int64_t> left_over = chunk_bytes;
  for (size_t i = 0; i < left_over.size(); ++i)
    if (here.resident[i]) left_over[i] = 0;
  Division rest = divide(tiers.subspan(1), left_over, input);
  rest.tiers.insert(rest.tiers.begin(), std::move(here));
  return rest;
}

// Divides the chunks that are not in nearer tiers among these tiers; chunks in nearer tiers count as empty.
Division divide(std::span<const TierLimit> tiers, const std::vector<int64_t>& chunk_bytes, const PlanInput& input) {
  const TierLimit& limit = tiers[0];
  const int64_t total = sum_of(chunk_bytes), room = std::max<int64_t>(limit.bytes - limit.taken, 0);
  if (total == 0 || limit.bytes < 0 || total <= room) {
    const std::vector<bool> all(chunk_bytes.size(), true);
    Division out{{plan_keeping(all, chunk_bytes, 0)}};
    out.tiers.resize(tiers.size(), plan_keeping(all, std::vector<int64_t>(all.size(), 0), 0));
    return out;
  }
  const char* const name = name_of(limit.tier);
  if (tiers.size() == 1)
    return {{},
            format("state takes %s, the %s budget is %s and there is no disk for the rest; give at least %lld bytes of "
                   "%s, or a directory on disk",
                   exact(total).c_str(), name, budget_text(limit).c_str(),
                   ll(std::max(total, input.whole_bytes) + limit.taken), name)};
  std::map<int64_t, int64_t> count;
  for (const int64_t bytes : chunk_bytes)
    if (bytes > 0) ++count[bytes];
  std::vector<SizeClass> classes;
  for (const auto& [bytes, n] : count) classes.push_back({bytes, n});
  if (input.max_slots == 0) return keep(tiers, chunk_bytes, input, classes, fill(classes, room), 0);
  const int64_t largest = classes.back().bytes;
  if (room < largest)
    return {{},
            format("the %s budget is %s, and the largest chunk of state must be in %s while it is stepped; give at "
                   "least %lld bytes of %s, or make chunks smaller (Memory's chunk)",
                   name, budget_text(limit).c_str(), name, ll(largest + limit.taken), name)};
  const auto beside = [&](int slots) -> std::optional<Division> {
    const std::optional<Choice> choice = choose(classes, slots, room);
    if (!choice) return std::nullopt;
    return keep(tiers, chunk_bytes, input, classes, *choice, slots);
  };
  // With fewer slots here, more chunks stay and fewer have to fit behind this tier. The last attempt reports what is
  // missing.
  Division best{{}, "no ring was tried"};
  int slots = std::min(input.max_slots, kOverlappingSlots) + 1;
  while (!best.problem.empty() && --slots >= 1)
    if (std::optional<Division> found = beside(slots)) best = *std::move(found);
  if (!best.problem.empty() || slots < kOverlappingSlots) return best;
  const int64_t base = best.tiers[0].streamed_bytes;
  while (++slots <= input.max_slots) {
    std::optional<Division> found = beside(slots);
    if (!found || !found->problem.empty() || found->tiers[0].streamed_bytes > base + base / 16) break;
    if (const int behind = found->tiers[1].slots; behind > 0 && behind < kOverlappingSlots) break;
    best = *std::move(found);
  }
  return best;
}

std::vector<TierLimit> tiers_of(const StoreOptions& options, const StoreRates& rates) {
  const Memory& memory = options.memory;
  std::vector<TierLimit> tiers;
  if (options.on_device) tiers.push_back({Tier::kDevice, options.device_now.value_or(memory.device)});
  tiers.push_back({Tier::kHost, memory.host, options.taken, rates.link, rates.link});
  if (!memory.disk.empty()) tiers.push_back({Tier::kDisk, memory.disk_limit, 0, rates.read, rates.write});
  return tiers;
}

// Returns a chunk size that is large enough for the disk's full rate and small enough that the ring leaves most of the
// budget to resident chunks.
int64_t chunk_bytes_for(const StoreOptions& options, int64_t total) {
  if (options.memory.chunk > 0) return options.memory.chunk;
  StoreOptions given = options;
  given.device_now.reset();
  std::vector<TierLimit> tiers = tiers_of(given, {});
  if (tiers.size() > 1) tiers.pop_back();  // the last tier has no slots; all other tiers must leave room
  int64_t budget = options.device_now ? total : INT64_MAX;
  for (const TierLimit& limit : tiers)
    if (limit.bytes >= 0) budget = std::min(budget, std::max<int64_t>(limit.bytes - limit.taken, 0));
  if (budget == INT64_MAX) return kLargestChunk;
  const int64_t share = std::min(budget, total) / (4 * kSlots) / kPageBytes * kPageBytes;
  return std::clamp(share, kSmallestChunk, kLargestChunk);
}

}  // namespace

TierPlan plan_keeping(std::vector<bool> resident, const std::vector<int64_t>& chunk_bytes, int slots) {
  TierPlan plan;
  plan.resident = std::move(resident);
  for (size_t i = 0; i < chunk_bytes.size(); ++i) {
    (plan.resident[i] ? plan.resident_bytes : plan.streamed_bytes) += chunk_bytes[i];
    if (plan.resident[i]) continue;
    plan.streamed.push_back(static_cast<int>(i));
    if (slots > 0) plan.slot_bytes = std::max(plan.slot_bytes, chunk_bytes[i]);
  }
  plan.slots = plan.streamed.empty() ? 0 : slots;
  plan.bytes = plan.resident_bytes + plan.slots * plan.slot_bytes;
  return plan;
}

Plan make_plan(const PlanInput& input) {
  check(input);
  Division found = divide(input.tiers, input.chunk_bytes, input);
  LT_REQUIRE(found.problem.empty(), "%s", found.problem.c_str());
  Plan plan;
  plan.tiers = std::move(found.tiers);
  plan.tier.assign(input.chunk_bytes.size(), input.tiers[0].tier);
  for (size_t t = 0; t + 1 < plan.tiers.size(); ++t)
    for (const int chunk : plan.tiers[t].streamed) plan.tier[static_cast<size_t>(chunk)] = input.tiers[t + 1].tier;
  predict_seconds(input, plan);
  return plan;
}

StorePlan plan_store(const StoreOptions& options, std::vector<int64_t> before, std::span<const ShapedParam> params,
                     const StoreRates& rates) {
  const int64_t known = sum_of(before);
  int64_t total = known;
  for (const ShapedParam& p : params)
    for (int k = 0; k < p.shape.states; ++k) total += p.shape.format[k].code_bytes(p.shape.rows * p.shape.row_length);
  const int64_t chunk_bytes = chunk_bytes_for(options, total);
  LT_REQUIRE(total / chunk_bytes <= kMostChunks,
             "got %lld bytes of state in chunks of %lld bytes, more than 2^22 of them; make chunks larger (Memory's "
             "chunk, of at least %lld) or give more memory",
             ll(total), ll(chunk_bytes), ll((total / kMostChunks + kPageBytes) / kPageBytes * kPageBytes));
  StorePlan out{cut_chunks(params, chunk_bytes), std::move(before), {}};
  for (const Chunk& chunk : out.added) out.chunk_bytes.push_back(chunk.bytes);
  PlanInput input{out.chunk_bytes, tiers_of(options, rates)};
  input.max_slots = options.in_place ? 0 : kSlots;
  input.step_rate = rates.step;
  if (options.device_now && !options.in_place && !out.chunk_bytes.empty()) {
    int64_t slots = kOverlappingSlots * *std::max_element(out.chunk_bytes.begin(), out.chunk_bytes.end());
    if (options.memory.device >= 0) slots = std::min(slots, options.memory.device);
    input.tiers[0].bytes = std::max(input.tiers[0].bytes, slots);
  }
  const TierLimit& only = input.tiers.front();
  if (input.tiers.size() == 1 && only.bytes >= 0 && sum_of(out.chunk_bytes) > only.bytes - only.taken) {
    // The chunks, and so their padding to pages, depend on the budget, so compute the size for the suggested budget.
    StoreOptions whole = options;
    whole.memory.host = total + options.taken;
    input.whole_bytes = known;
    for (const Chunk& chunk : cut_chunks(params, chunk_bytes_for(whole, total))) input.whole_bytes += chunk.bytes;
  }
  out.plan = make_plan(input);
  return out;
}

}  // namespace lowtide
