#include "lowtide/planning.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "backend/catalog.h"
#include "core/error.h"
#include "memory/arena.h"
#include "memory/transfer_mode.h"
#include "optim/param_spec.h"
#include "optim/residence.h"

namespace lowtide {
namespace {

void check_rate(const char* name, double rate) {
  LT_REQUIRE(std::isfinite(rate) && rate >= 0, "got %s=%g bytes/s, wanted a finite number, or 0 for unknown", name,
             rate);
}

// The parameters of one budget.
struct Members {
  int64_t params = 0, elements = 0, state_bytes = 0;
  std::vector<ShapedParam> shaped;
  bool read_twice = false;  // norms of whole parameters are computed from their state, before a step
  double seconds = 0;       // of stepping them
  bool known = true;        // all rates that it depends on

  void add(const ParamSpec& param, double step_rate) {
    const int64_t bytes = param.bytes(param.rule);
    shaped.push_back({params++, param.state_shape(param.rule)});
    elements += param.shape.numel;
    state_bytes += bytes;
    read_twice = read_twice || param.norms_read_arrays();
    known = known && (step_rate > 0 || bytes == 0);
    if (step_rate > 0) seconds += static_cast<double>(bytes) / step_rate;
  }
};

bool is_on_device(const Memory& memory) { return memory.device_bytes >= 0 || memory.managed; }

// All at once for a store, or where a limit holds them; one by one without a limit.
void predict_bytes(const Memory& memory, const Members& members, const StoreRates& rates, BudgetPlan& out) {
  Placement placement = placement_of(memory, 0, members.shaped);
  if (is_on_device(memory)) {
    placement.direct = false;
    placement.store = {budget_of(memory), memory.disk, true};
    if (memory.managed) placement.store.budget.device = -1;
    placement.store.in_place = find_transfer_mode(memory.transfer) == TransferMode::kZeroCopy;
  }
  Plan plan;
  if (placement.direct) {
    ArenaSizes arena;
    if (memory.ram_bytes >= 0) arena.reserve(static_cast<size_t>(placement.record_bytes));
    for (const ShapedParam& param : members.shaped) arena.allocate(static_cast<size_t>(record_bytes(param.shape)));
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
    out.behind_slot_bytes = store.host.slots * store.host.slot_bytes;
    out.behind_bytes = store.host.streamed_bytes;
    out.behind_moved_per_step = store.host.read_bytes + store.host.written_bytes;
    out.disk_bytes = plan.streamed_bytes - out.behind_bytes + out.behind_slot_bytes;
    out.chunks = static_cast<int64_t>(store.chunk_bytes.size());
    out.moved_per_step = plan.read_bytes + plan.written_bytes;
    if (members.read_twice) {
      out.moved_per_step += plan.read_bytes;
      const double again = rates.read > 0 ? static_cast<double>(plan.read_bytes) / rates.read : 0;
      if (plan.disk_seconds > 0) plan.disk_seconds += again;
      if (plan.seconds > 0) plan.seconds += again;
      out.behind_moved_per_step += store.host.read_bytes;
    }
    if (out.behind_bytes > 0) plan.seconds = 0;
  }
  out.step_seconds = plan.step_seconds;
  out.disk_seconds = plan.disk_seconds;
  out.seconds = plan.seconds;
}

BudgetPlan predict(const Memory& memory, const Members& members, const PlanRequest& request) {
  BudgetPlan out;
  out.params = members.params;
  out.elements = members.elements;
  out.state_bytes = members.state_bytes;
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
  const auto add = [&](int64_t BudgetPlan::*field) {
    for (const BudgetPlan& budget : budgets) total.*field += budget.*field;
  };
  for (const auto field : {&BudgetPlan::params, &BudgetPlan::elements, &BudgetPlan::state_bytes}) add(field);
  for (const BudgetPlan& budget : budgets) {
    if (total.fits) total.problem = budget.problem;
    total.fits = total.fits && budget.fits;
  }
  if (!total.fits) return total;
  for (const auto field :
       {&BudgetPlan::direct_bytes, &BudgetPlan::resident_bytes, &BudgetPlan::slot_bytes, &BudgetPlan::disk_bytes,
        &BudgetPlan::chunks, &BudgetPlan::moved_per_step, &BudgetPlan::behind_slot_bytes, &BudgetPlan::behind_bytes,
        &BudgetPlan::behind_moved_per_step})
    add(field);
  // Known if those of all budgets are that have bytes to step or to move.
  const auto add_seconds = [&](double BudgetPlan::*seconds, int64_t BudgetPlan::*bytes) {
    for (const BudgetPlan& budget : budgets)
      if (budget.*seconds <= 0 && budget.*bytes != 0) return;
    for (const BudgetPlan& budget : budgets) total.*seconds += budget.*seconds;
  };
  add_seconds(&BudgetPlan::step_seconds, &BudgetPlan::state_bytes);
  add_seconds(&BudgetPlan::disk_seconds, &BudgetPlan::moved_per_step);
  add_seconds(&BudgetPlan::seconds, &BudgetPlan::state_bytes);
  return total;
}

}  // namespace

void MemoryPlan::require_fit() const {
  if (!total.fits) fail(ErrorKind::kInvalidArgument, "%s", total.problem.c_str());
}

MemoryPlan plan_memory(const PlanRequest& request) {
  const int rule = find_rule(request.options.rule);
  check_rate("read_rate", request.read_rate);
  check_rate("write_rate", request.write_rate);
  check_memory(request.options.memory);
  std::vector<Memory> memories = {request.options.memory};
  std::vector<Members> members(1);
  std::vector<GroupSpec> groups;
  int64_t elements = 0;
  for (const PlannedGroup& planned : request.groups) {
    check_rate("step_rate", planned.step_rate);
    const GroupSpec group = make_group(planned.options, rule, groups, memories.size());
    groups.push_back(group);
    if (planned.options.memory) {
      check_memory(*planned.options.memory);
      memories.push_back(*planned.options.memory);
      members.emplace_back();
    }
    for (const PlannedParam& param : planned.params) {
      const ParamSpec spec = make_spec(group, param.sizes, param.dtype, param.whole);
      LT_REQUIRE(spec.shape.numel <= kMostElements - elements, "got more than 2^52 elements in all");
      elements += spec.shape.numel;
      // Under a limit, state comes with the first step, and there is nothing to step here.
      const Memory& memory = memories[group.budget];
      if (spec.shape.numel > 0 || (memory.ram_bytes < 0 && !is_on_device(memory)))
        members[group.budget].add(spec, planned.step_rate);
    }
  }
  MemoryPlan out;
  for (size_t i = 0; i < memories.size(); ++i) out.budgets.push_back(predict(memories[i], members[i], request));
  out.total = sum(out.budgets);
  return out;
}

}  // namespace lowtide
