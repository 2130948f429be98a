#include "lowtide/planning.h"

#include <algorithm>
#include <cmath>

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

// One of all parameters.
struct Member {
  int64_t number;
  size_t budget;
  double step_rate;
  ParamSpec param;
};

// The parameters of one budget.
struct Members {
  int64_t params = 0, elements = 0, state_bytes = 0;
  std::vector<ShapedParam> shaped;
  bool read_twice = false;  // norms of whole parameters need their state before a step
  double seconds = 0;       // for stepping all of them
  bool known = true;        // all needed rates are known

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

bool is_on_device(const Memory& memory) { return memory.device >= 0 || memory.managed; }

// Forecasts one allocation for a store or under a limit that holds everything, and one per parameter without a limit.
void forecast_bytes(const Memory& memory, const Members& members, const StoreRates& rates, Forecast& out) {
  Placement placement = placement_of(memory, 0, members.shaped);
  if (is_on_device(memory)) {
    placement.direct = false;
    placement.store.on_device = true;
    if (memory.managed) placement.store.memory.device = -1;
    placement.store.in_place = find_transfer_mode(memory.transfer) == TransferMode::kZeroCopy;
  }
  if (placement.direct) {
    ArenaSizes arena;
    if (memory.host >= 0) arena.reserve(static_cast<size_t>(placement.record_bytes));
    for (const ShapedParam& param : members.shaped) arena.allocate(static_cast<size_t>(record_bytes(param.shape)));
    out.direct_bytes = out.host_bytes = arena.allocated_bytes();
    if (rates.step > 0) out.step_seconds = out.seconds = static_cast<double>(out.state_bytes) / rates.step;
    return;
  }
  const StorePlan store = plan_store(placement.store, {}, placement.shaped, rates);
  const Plan& plan = store.plan;
  const TierPlan& nearest = plan.tiers.front();
  out.resident_bytes = nearest.resident_bytes;
  out.streamed_bytes = nearest.streamed_bytes;
  out.slot_bytes = nearest.slots * nearest.slot_bytes;
  out.chunks = static_cast<int64_t>(store.chunk_bytes.size());
  out.step_seconds = plan.step_seconds, out.link_seconds = plan.link_seconds, out.disk_seconds = plan.disk_seconds;
  out.seconds = plan.seconds;
  const int passes = members.read_twice ? 3 : 2;
  out.moved_per_step = passes * nearest.streamed_bytes;
  auto tier = plan.tiers.begin();
  if (is_on_device(memory)) out.device_bytes = (tier++)->bytes;
  out.host_bytes = tier->bytes;
  out.disk_bytes = tier->streamed_bytes;
  out.disk_moved_per_step = passes * out.disk_bytes;
  if (!members.read_twice) return;
  const auto read_again = [&](double& seconds, int64_t bytes, double rate) {
    if (seconds <= 0) return;
    const double again = static_cast<double>(bytes) / rate;
    seconds += again;
    if (out.seconds > 0) out.seconds += again;
  };
  read_again(out.link_seconds, nearest.streamed_bytes, rates.link);
  read_again(out.disk_seconds, out.disk_bytes, rates.read);
}

Forecast forecast_budget(const Memory& memory, const Members& members, const ForecastRequest& request) {
  Forecast out;
  out.params = members.params;
  out.elements = members.elements;
  out.state_bytes = members.state_bytes;
  const bool known = members.known && members.seconds > 0;
  const StoreRates rates{request.link_rate, request.read_rate, request.write_rate,
                         known ? static_cast<double>(out.state_bytes) / members.seconds : 0};
  try {
    forecast_bytes(memory, members, rates, out);
  } catch (const Error& error) {  // everything except the budget has been checked
    if (error.kind() != ErrorKind::kInvalidArgument) throw;
    out.fits = false;
    out.problem = error.what();
  }
  return out;
}

Forecast sum(const std::vector<Forecast>& budgets) {
  Forecast total;
  const auto add = [&](int64_t Forecast::*field) {
    for (const Forecast& budget : budgets) total.*field += budget.*field;
  };
  for (const auto field : {&Forecast::params, &Forecast::elements, &Forecast::state_bytes}) add(field);
  for (const Forecast& budget : budgets) {
    if (total.fits) total.problem = budget.problem;
    total.fits = total.fits && budget.fits;
  }
  if (!total.fits) return total;
  for (const auto field :
       {&Forecast::device_bytes, &Forecast::host_bytes, &Forecast::disk_bytes, &Forecast::direct_bytes,
        &Forecast::resident_bytes, &Forecast::streamed_bytes, &Forecast::slot_bytes, &Forecast::chunks,
        &Forecast::moved_per_step, &Forecast::disk_moved_per_step})
    add(field);
  // The total is known if it is known for every budget with bytes to step or move.
  const auto add_seconds = [&](double Forecast::*seconds, int64_t Forecast::*bytes) {
    for (const Forecast& budget : budgets)
      if (budget.*seconds <= 0 && budget.*bytes != 0) return;
    for (const Forecast& budget : budgets) total.*seconds += budget.*seconds;
  };
  add_seconds(&Forecast::step_seconds, &Forecast::state_bytes);
  add_seconds(&Forecast::link_seconds, &Forecast::moved_per_step);
  add_seconds(&Forecast::disk_seconds, &Forecast::disk_moved_per_step);
  add_seconds(&Forecast::seconds, &Forecast::state_bytes);
  return total;
}

}  // namespace

void Forecasts::require_fit() const {
  if (!total.fits) fail(ErrorKind::kInvalidArgument, "%s", total.problem.c_str());
}

Forecasts forecast(const ForecastRequest& request) {
  const int rule = find_rule(request.options.rule);
  check_rate("read_rate", request.read_rate);
  check_rate("write_rate", request.write_rate);
  check_rate("link_rate", request.link_rate);
  check_memory(request.options.memory);
  std::vector<Memory> memories = {request.options.memory};
  std::vector<Members> members(1);
  std::vector<GroupSpec> groups;
  std::vector<Member> found;
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
      // Under a limit, the first step allocates state, and steps skip empty parameters.
      const Memory& memory = memories[group.budget];
      if (spec.shape.numel > 0 || (memory.host < 0 && !is_on_device(memory)))
        found.push_back({param.number, group.budget, planned.step_rate, spec});
    }
  }
  std::ranges::stable_sort(found, {}, &Member::number);
  for (const Member& each : found) members[each.budget].add(each.param, each.step_rate);
  Forecasts out;
  for (size_t i = 0; i < memories.size(); ++i) out.budgets.push_back(forecast_budget(memories[i], members[i], request));
  out.total = sum(out.budgets);
  return out;
}

}  // namespace lowtide
