#include "memory/tier_plan.h"

#include <algorithm>

#include "core/error.h"

namespace lowtide {
namespace {

TierPlan plan_with(const std::vector<int64_t>& chunk_bytes, const Budget& budget, int device_slots, int host_slots) {
  TierPlan out;
  PlanInput near;
  near.chunk_bytes = chunk_bytes;
  near.ram_budget = budget.device;
  near.has_disk = true;
  near.near = "device memory", near.far = "host memory";
  near.max_slots = device_slots;
  out.device = make_plan(near);

  PlanInput far;
  for (const int chunk : out.device.streamed) far.chunk_bytes.push_back(chunk_bytes[static_cast<size_t>(chunk)]);
  far.ram_budget = budget.host;
  far.disk_budget = budget.disk;
  far.has_disk = true;
  far.near = "host memory";
  far.max_slots = host_slots;
  out.host = make_plan(far);

  out.tier.assign(chunk_bytes.size(), Tier::kDevice);
  for (size_t i = 0; i < out.device.streamed.size(); ++i)
    out.tier[static_cast<size_t>(out.device.streamed[i])] = out.host.resident[i] ? Tier::kHost : Tier::kDisk;
  return out;
}

}  // namespace

TierPlan plan_tiers(const std::vector<int64_t>& chunk_bytes, const Budget& budget, int max_slots) {
  LT_REQUIRE(budget.device >= -1, "got a budget of %lld bytes of device memory; give 0 or more, or -1 for no limit",
             ll(budget.device));
  LT_REQUIRE(budget.host >= -1 && budget.disk >= -1,
             "got budgets of %lld bytes of host memory and %lld bytes of disk; give 0 or more, or -1 for no limit",
             ll(budget.host), ll(budget.disk));
  LT_REQUIRE(max_slots >= 1, "got max_slots=%d; give 1 to 64", max_slots);
  // With fewer slots on the device more chunks stay there, and less has to fit behind it. A fourth slot there is not
  // worth one of three in host memory. The last try says what is missing.
  for (int slots = max_slots; slots > 1; slots = std::min(slots - 1, kOverlappingSlots)) {
    try {
      TierPlan plan = plan_with(chunk_bytes, budget, slots, max_slots);
      const bool overlaps = plan.host.slots == 0 || plan.host.slots >= kOverlappingSlots;
      if (overlaps || slots <= kOverlappingSlots) return plan;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kInvalidArgument) throw;
    }
  }
  return plan_with(chunk_bytes, budget, 1, max_slots);
}

}  // namespace lowtide
