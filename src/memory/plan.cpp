#include "memory/plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "core/buffer.h"
#include "core/error.h"
#include "core/sizes.h"

namespace lowtide {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 56;  // in total; slots * slot_bytes cannot overflow
constexpr int kMostSlots = 64;
// Bounds of the search for the resident set: milliseconds for sizes as they occur, 8 MiB of memory at the worst.
constexpr int64_t kMostUnits = int64_t{1} << 20;  // of one subset sum
constexpr int64_t kMostWork = int64_t{1} << 24;   // units * sizes of one subset sum
constexpr int kMostTries = 16;                    // sizes of slots looked at

struct SizeClass {
  int64_t bytes;  // of each chunk; more than 0
  int64_t count;
};

// How many chunks of each class to keep resident.
struct Choice {
  std::vector<int64_t> keep;
  int64_t bytes = 0;
};

// As many bytes as fit into `capacity`. Exact within the bounds above.
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
  if (room <= most) {  // else nothing that is left fits
    // from[c]: the class whose chunk was the last to make the sum c, and `used`, how many of it that took. A sum keeps
    // the class that reached it first, so going back from any sum takes no class more often than there is of it.
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

// The resident set with the most bytes beside a ring of `slots`; nothing if the budget holds no such ring. For each
// size that slots could have, larger chunks must be resident and the others may be. From the smallest size on: once
// the budget less the slots is no more than what was found, larger slots cannot be better.
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

int64_t checked_total(const PlanInput& input) {
  LT_REQUIRE(input.ram_budget >= -1 && input.disk_budget >= -1,
             "got budgets of %lld bytes of RAM and %lld bytes of disk; give 0 or more, or -1 for no limit",
             ll(input.ram_budget), ll(input.disk_budget));
  LT_REQUIRE(input.max_slots >= 0 && input.max_slots <= kMostSlots, "got max_slots=%d; give 0 to %d", input.max_slots,
             kMostSlots);
  for (const double rate : {input.read_rate, input.write_rate, input.step_rate}) {
    LT_REQUIRE(std::isfinite(rate) && rate >= 0, "got a rate of %g bytes/s; give 0 (unknown) or a finite one", rate);
  }
  LT_REQUIRE(input.chunk_bytes.size() <= size_t{1} << 30, "got %zu chunks; 2^30 are the most",
             input.chunk_bytes.size());
  int64_t total = 0;
  for (size_t i = 0; i < input.chunk_bytes.size(); ++i) {
    const int64_t bytes = input.chunk_bytes[i];
    LT_REQUIRE(bytes >= 0 && bytes % kPageBytes == 0,
               "got %lld bytes for chunk %zu; chunks are multiples of %lld bytes", ll(bytes), i, ll(kPageBytes));
    LT_REQUIRE(bytes <= kMostBytes - total, "got more than %s of state in all", exact(kMostBytes).c_str());
    total += bytes;
  }
  return total;
}

void predict_seconds(const PlanInput& input, Plan& plan) {
  const bool disk_known = input.read_rate > 0 && input.write_rate > 0;
  if (input.step_rate > 0) plan.step_seconds = static_cast<double>(plan.total_bytes) / input.step_rate;
  const double read = disk_known ? static_cast<double>(plan.read_bytes) / input.read_rate : 0;
  const double write = disk_known ? static_cast<double>(plan.written_bytes) / input.write_rate : 0;
  plan.disk_seconds = input.both_ways ? std::max(read, write) : read + write;
  if (input.step_rate == 0 || (plan.slots > 0 && !disk_known)) return;
  plan.seconds = std::max(plan.step_seconds, plan.disk_seconds);
  if (plan.slots == 1) plan.seconds = plan.step_seconds + read + write;
  if (plan.slots > 1)
    plan.seconds = std::max(plan.seconds, (read + static_cast<double>(plan.streamed_bytes) / input.step_rate + write) /
                                              static_cast<double>(plan.slots));
}

// streamed: the fewest bytes that there can be.
void check_far(const PlanInput& input, int64_t total, int64_t streamed) {
  LT_REQUIRE(input.disk_budget < 0 || streamed <= input.disk_budget,
             "%s of state do not fit in the %s budget of %s, and the %s budget is %s; give at least %lld bytes of %s, "
             "or more %s",
             exact(total).c_str(), input.near, exact(input.ram_budget).c_str(), input.far,
             exact(input.disk_budget).c_str(), ll(streamed), input.far, input.near);
}

// The ring and the resident set beside it, for state that does not fit.
std::pair<int, Choice> divide(const PlanInput& input, std::span<const SizeClass> classes, int64_t total) {
  const int64_t largest = classes.back().bytes;
  LT_REQUIRE(input.has_disk,
             "state takes %s, the RAM budget is %s and there is no disk for the rest; give at least %lld bytes of RAM, "
             "or a directory on disk",
             exact(total).c_str(), exact(input.ram_budget).c_str(), ll(std::max(total, input.whole_bytes)));
  if (input.max_slots == 0) {
    Choice choice = fill(classes, input.ram_budget);
    check_far(input, total, total - choice.bytes);
    return {0, std::move(choice)};
  }
  LT_REQUIRE(input.ram_budget >= largest,
             "the %s budget is %s, and the largest chunk of state must be in %s while it is stepped; give at least "
             "%lld bytes of %s, or make chunks smaller (chunk_bytes; in Python, Memory's chunk)",
             input.near, exact(input.ram_budget).c_str(), input.near, ll(largest), input.near);
  const auto streamed = [&](const Choice& choice) { return total - choice.bytes; };
  int slots = 0;
  Choice best;
  int64_t least = total;  // bytes on disk, of any ring
  for (int n = std::min(input.max_slots, kOverlappingSlots); n >= 1 && slots == 0; --n) {
    std::optional<Choice> choice = choose(classes, n, input.ram_budget);
    if (!choice) continue;
    least = std::min(least, streamed(*choice));
    if (input.disk_budget >= 0 && streamed(*choice) > input.disk_budget) continue;
    slots = n;
    best = *std::move(choice);
  }
  if (slots == 0) check_far(input, total, least);
  if (slots < kOverlappingSlots) return {slots, std::move(best)};
  const int64_t base = streamed(best);
  for (int n = kOverlappingSlots + 1; n <= input.max_slots; ++n) {
    std::optional<Choice> choice = choose(classes, n, input.ram_budget);
    if (!choice || streamed(*choice) > base + base / 16) break;
    if (input.disk_budget >= 0 && streamed(*choice) > input.disk_budget) break;
    slots = n;
    best = *std::move(choice);
  }
  return {slots, std::move(best)};
}

}  // namespace

Plan plan_keeping(std::vector<bool> resident, const std::vector<int64_t>& chunk_bytes, int slots) {
  Plan plan;
  plan.resident = std::move(resident);
  for (size_t i = 0; i < chunk_bytes.size(); ++i) {
    plan.total_bytes += chunk_bytes[i];
    if (plan.resident[i]) continue;
    plan.streamed.push_back(static_cast<int>(i));
    plan.streamed_bytes += chunk_bytes[i];
    if (slots > 0) plan.slot_bytes = std::max(plan.slot_bytes, chunk_bytes[i]);
  }
  plan.slots = plan.streamed.empty() ? 0 : slots;
  plan.resident_bytes = plan.total_bytes - plan.streamed_bytes;
  plan.ram_bytes = plan.resident_bytes + plan.slots * plan.slot_bytes;
  plan.read_bytes = plan.written_bytes = plan.streamed_bytes;
  return plan;
}

Plan make_plan(const PlanInput& input) {
  Plan plan;
  plan.total_bytes = checked_total(input);
  plan.resident.assign(input.chunk_bytes.size(), true);
  plan.resident_bytes = plan.ram_bytes = plan.total_bytes;
  if (input.ram_budget >= 0 && plan.total_bytes > input.ram_budget) {
    std::map<int64_t, int64_t> count;
    for (const int64_t bytes : input.chunk_bytes)
      if (bytes > 0) ++count[bytes];
    std::vector<SizeClass> classes;
    for (const auto& [bytes, n] : count) classes.push_back({bytes, n});
    auto [slots, choice] = divide(input, classes, plan.total_bytes);
    for (size_t i = 0; i < classes.size(); ++i) count[classes[i].bytes] = choice.keep[i];  // still to be placed
    for (size_t i = 0; i < input.chunk_bytes.size(); ++i) {
      const int64_t bytes = input.chunk_bytes[i];
      if (bytes == 0 || count[bytes]-- > 0) continue;
      plan.resident[i] = false;
    }
    plan = plan_keeping(std::move(plan.resident), input.chunk_bytes, slots);
  }
  predict_seconds(input, plan);
  return plan;
}

}  // namespace lowtide
