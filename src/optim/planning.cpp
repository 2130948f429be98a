#include "lowtide/planning.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "backend/catalog.h"
#include "core/error.h"
#include "memory/arena_sizes.h"
#include "optim/home.h"
#include "optim/hyper.h"
#include "optim/slot.h"

namespace lowtide {
namespace {

void check_rate(const char* name, double rate) {
  LT_REQUIRE(std::isfinite(rate) && rate >= 0, "got %s=%g bytes/s, wanted a finite number, or 0 for unknown", name,
             rate);
}

// The parameters of one budget, as the optimizer would hold them.
struct Members {
  std::vector<Slot> slots;
  double seconds = 0;  // of stepping them
  bool known = true;   // all rates that it depends on
};

// All at once for a store, or where a limit holds them; one by one without a limit.
void predict_bytes(const Memory& memory, const Members& members, const StoreRates& rates, BudgetPlan& out) {
  std::vector<const Slot*> slots;
  std::vector<int64_t> numbers;
  for (const Slot& slot : members.slots) {
    numbers.push_back(static_cast<int64_t>(slots.size()));
    slots.push_back(&slot);
  }
  const Placement placement = placement_of(memory, 0, slots, numbers);
  Plan plan;
  if (placement.direct) {
    ArenaSizes arena;
    if (memory.ram_bytes >= 0) arena.reserve(static_cast<size_t>(placement.record_bytes));
    for (const Slot* slot : slots) arena.allocate(static_cast<size_t>(slot->record_bytes(slot->rule)));
    out.direct_bytes = arena.allocated_bytes();
    PlanInput input;
    input.chunk_bytes = {round_up(out.state_bytes, kPageBytes)};
    input.step_rate = rates.step;
    plan = make_plan(input);
  } else {
    StorePlan store = plan_store(placement.store, {}, placement.shaped, rates);
    plan = std::move(store.plan);
    out.resident_bytes = plan.resident_bytes;
    out.slot_bytes = plan.slots * plan.slot_bytes;
    out.disk_bytes = plan.streamed_bytes;
    out.chunks = static_cast<int64_t>(store.chunk_bytes.size());
    out.moved_per_step = plan.read_bytes + plan.written_bytes;
    const auto reads_twice = [](const Slot* slot) { return slot->norms_read_arrays(); };
    if (std::any_of(slots.begin(), slots.end(), reads_twice)) {  // norms come first, of all of it
      out.moved_per_step += plan.read_bytes;
      const double again = rates.read > 0 ? static_cast<double>(plan.read_bytes) / rates.read : 0;
      if (plan.disk_seconds > 0) plan.disk_seconds += again;
      if (plan.seconds > 0) plan.seconds += again;
    }
  }
  out.step_seconds = plan.step_seconds;
  out.disk_seconds = plan.disk_seconds;
  out.seconds = plan.seconds;
}

BudgetPlan predict(const Memory& memory, const Members& members, const PlanRequest& request) {
  BudgetPlan out;
  for (const Slot& slot : members.slots) {
    ++out.params;
    out.elements += slot.layout.numel;
    out.state_bytes += slot.bytes_of(slot.rule);
  }
  const bool known = members.known && members.seconds > 0;
  const StoreRates rates{request.read_rate, request.write_rate,
                         known ? static_cast<double>(out.state_bytes) / members.seconds : 0};
  try {
    predict_bytes(memory, members, rates, out);
  } catch (const Error& error) {  // everything but the budget has been checked
    if (error.kind() != ErrorKind::kInvalidArgument) throw;
    out.fits = false;
    out.problem = error.what();
  }
  return out;
}

BudgetPlan sum(const std::vector<BudgetPlan>& budgets) {
  BudgetPlan total;
  bool steps_known = true, disks_known = true, all_known = true;
  for (const BudgetPlan& budget : budgets) {
    total.params += budget.params;
    total.elements += budget.elements;
    total.state_bytes += budget.state_bytes;
    if (total.fits) total.problem = budget.problem;
    total.fits = total.fits && budget.fits;
    steps_known = steps_known && (budget.step_seconds > 0 || budget.state_bytes == 0);
    disks_known = disks_known && (budget.disk_seconds > 0 || budget.moved_per_step == 0);
    all_known = all_known && (budget.seconds > 0 || budget.state_bytes == 0);
  }
  if (!total.fits) return total;
  for (const BudgetPlan& budget : budgets) {
    total.direct_bytes += budget.direct_bytes;
    total.resident_bytes += budget.resident_bytes;
    total.slot_bytes += budget.slot_bytes;
    total.disk_bytes += budget.disk_bytes;
    total.chunks += budget.chunks;
    total.moved_per_step += budget.moved_per_step;
    if (steps_known) total.step_seconds += budget.step_seconds;
    if (disks_known) total.disk_seconds += budget.disk_seconds;
    if (all_known) total.seconds += budget.seconds;
  }
  return total;
}

}  // namespace

void MemoryPlan::require_fit() const {
  if (!total.fits) fail(ErrorKind::kInvalidArgument, "%s", total.problem.c_str());
}

MemoryPlan plan_memory(const PlanRequest& request) {
  const int of_all = find_rule(request.options.rule);
  check_rate("read_rate", request.read_rate);
  check_rate("write_rate", request.write_rate);
  std::vector<Memory> memories = {request.options.memory};
  std::vector<Members> members(1);
  std::vector<size_t> homes;  // of each group
  int64_t elements = 0;
  for (const PlannedGroup& group : request.groups) {
    const std::string& name = group.options.rule.empty() ? request.options.rule : group.options.rule;
    check_group(name, group.options);
    check_rate("step_rate", group.step_rate);
    const int codec = find_codec(group.options.state);
    if (group.options.memory) {
      memories.push_back(*group.options.memory);
      members.emplace_back();
    }
    const int shared = group.options.budget_of;
    LT_REQUIRE(shared >= -1 && shared < static_cast<int>(homes.size()) && (shared == -1 || !group.options.memory),
               "got budget_of=%d in group %zu, wanted an earlier group, or -1, and no other budget", shared,
               homes.size());
    const size_t home = group.options.memory ? memories.size() - 1
                        : shared == -1       ? 0
                                             : homes[static_cast<size_t>(shared)];
    homes.push_back(home);
    const int rule = group.options.rule.empty() ? of_all : find_rule(name);
    for (const PlannedParam& param : group.params) {
      Slot slot;
      slot.layout = Layout::make(param.sizes, {});
      LT_REQUIRE(slot.layout.numel <= kMostElements - elements, "got more than 2^52 elements in all");
      elements += slot.layout.numel;
      // Under a limit, state comes with the first step, and there is nothing to step here.
      if (slot.layout.numel == 0 && memories[home].ram_bytes >= 0) continue;
      slot.rule = slot.state_rule = effective_rule(rule, variant_of(group.options.hyper));
      slot.codec = codec_for(codec, param.sizes, param.whole, group.options.min_quantized_numel);
      check_averages(name, slot.codec, group.options.hyper);
      slot.master = master_for(find_master(group.options.master), param.dtype);
      Members& to = members[home];
      const int64_t bytes = slot.bytes_of(slot.rule);
      to.known = to.known && (group.step_rate > 0 || bytes == 0);
      if (group.step_rate > 0) to.seconds += static_cast<double>(bytes) / group.step_rate;
      to.slots.push_back(std::move(slot));
    }
  }
  MemoryPlan out;
  for (const Memory& memory : memories) check_memory(memory);
  for (size_t i = 0; i < memories.size(); ++i) out.budgets.push_back(predict(memories[i], members[i], request));
  out.total = sum(out.budgets);
  return out;
}

}  // namespace lowtide
