#include "arguments.h"
#include "tensor_reader.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lowtide/planning.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowtide::python {
namespace {

FieldDict forecast_dict(const Forecast& found) {
  FieldDict out;
  out["params"] = found.params;
  out["elements"] = found.elements;
  out["state_bytes"] = found.state_bytes;
  out["fits"] = found.fits;
  out["problem"] = found.problem;
  out["device_bytes"] = found.device_bytes;
  out["host_bytes"] = found.host_bytes;
  out["disk_bytes"] = found.disk_bytes;
  out["direct_bytes"] = found.direct_bytes;
  out["resident_bytes"] = found.resident_bytes;
  out["streamed_bytes"] = found.streamed_bytes;
  out["slot_bytes"] = found.slot_bytes;
  out["chunks"] = found.chunks;
  out["moved_per_step"] = found.moved_per_step;
  out["disk_moved_per_step"] = found.disk_moved_per_step;
  out["step_seconds"] = found.step_seconds;
  out["link_seconds"] = found.link_seconds;
  out["disk_seconds"] = found.disk_seconds;
  out["seconds"] = found.seconds;
  return out;
}

// (sizes, whole, element type, number)
using Param = std::tuple<std::vector<int64_t>, GivenWhole, std::string, int64_t>;
// (params, options, hyper-parameters that are not the defaults, memory or None, step rate, group whose budget it shares
// or -1, rule or "")
using Group = std::tuple<std::vector<Param>, OptionDict, HyperDict, GivenMemory, double, int, std::string>;

std::pair<FieldDict, std::vector<FieldDict>> forecast_dicts(const std::string& rule, const GivenMemory& memory,
                                                            const std::vector<Group>& groups, double read_rate,
                                                            double write_rate) {
  ForecastRequest request{{.rule = rule, .memory = memory_from(memory).value_or(Memory{})}, {}, read_rate, write_rate};
  for (const auto& [params, given, hyper, own, step_rate, budget_of, of_group] : groups) {
    GroupOptions options = group_from(given, hyper_from(default_hyper(of_group.empty() ? rule : of_group), hyper));
    options.memory = memory_from(own), options.budget_of = budget_of, options.rule = of_group;
    PlannedGroup& group = request.groups.emplace_back(PlannedGroup{std::move(options), {}, step_rate});
    for (const auto& [sizes, whole, dtype, number] : params)
      group.params.push_back({sizes, whole_from(whole), dtype_named(dtype), number});
  }
  const Forecasts found = released([&] { return forecast(request); });
  std::vector<FieldDict> budgets;
  for (const Forecast& budget : found.budgets) budgets.push_back(forecast_dict(budget));
  return {forecast_dict(found.total), budgets};
}

double step_rate(const std::string& rule, const std::string& state, const HyperDict& hyper, int threads,
                 int64_t elements, double seconds) {
  const StepMeasurement what{.rule = rule,
                             .state = state,
                             .hyper = hyper_from(default_hyper(rule), hyper),
                             .threads = threads,
                             .elements = elements,
                             .seconds = seconds};
  return released([&] { return measure_step_rate(what); });
}

FieldDict disk_dict(const DiskInfo& info) {
  FieldDict out;
  out["free_bytes"] = info.free_bytes;
  out["engine"] = info.engine;
  out["direct"] = info.direct;
  return out;
}

FieldDict disk_rates(const std::string& directory, int64_t bytes, double seconds) {
  const DiskRates rates = released([&] { return measure_disk_rates(directory, bytes, seconds); });
  FieldDict out = disk_dict(rates.disk);
  out["read"] = rates.read;
  out["write"] = rates.write;
  out["bytes"] = rates.bytes;
  return out;
}

}  // namespace

void bind_planning(nb::module_& m) {
  m.def(
      "forecast", &forecast_dicts, "rule"_a, "memory"_a.none(), "groups"_a, "read_rate"_a = 0.0, "write_rate"_a = 0.0,
      R"(groups: (params, options of `group_options`, hyper-parameters that are not the defaults, own budget, bytes of state
stepped per second, group whose budget it shares or -1, rule or ""). params: (sizes, whole, element type, number).
Returns the fields of `lowtide.Forecast` in all and for each budget: the optimizer's, then each group's.)");
  m.def("measure_step_rate", &step_rate, "rule"_a, "state"_a, "hyper"_a = HyperDict(nb::dict()), "threads"_a = 0,
        "elements"_a = 0, "seconds"_a = 0.5,
        "Bytes of state per second; 0 for a rule without state. Releases the GIL.");
  m.def(
      "disk_info", [](const std::string& directory) { return disk_dict(disk_info(directory)); }, "directory"_a);
  m.def(
      "measure_disk_rates", &disk_rates, "directory"_a, "bytes"_a = int64_t{256} << 20, "seconds"_a = 1.0,
      R"(The fields of `disk_info`, "read" and "write" in bytes per second, and the "bytes" used. Releases the GIL.)");
}

}  // namespace lowtide::python
