#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>

#include "arguments.h"
#include "core/env.h"
#include "optim/checkpoint.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowtide::python {
namespace {

FieldDict describe(const std::string& path) {
  const CheckpointFile file(system_env(), path);
  const Checkpoint& held = file.contents();
  FieldDict out;
  nb::dict states;
  int64_t elements = 0, fewest = held.params.empty() ? 0 : held.params.front().steps, most = 0;
  for (const CheckpointParam& param : held.params) {
    int64_t numel = 1, bytes = 0;
    for (const int64_t size : param.sizes) numel *= size;
    for (const CheckpointState& state : param.states) bytes += state.code_bytes + state.scale_bytes;
    const char* const codec = param.states.empty() ? "none" : param.codec.c_str();
    nb::dict entry = states.contains(codec) ? nb::cast<nb::dict>(states[codec]) : nb::dict();
    const auto add = [&](const char* key, int64_t n) {
      entry[key] = n + (entry.contains(key) ? nb::cast<int64_t>(entry[key]) : 0);
    };
    add("params", 1);
    add("bytes", bytes);
    states[codec] = entry;
    elements += numel;
    fewest = std::min(fewest, param.steps);
    most = std::max(most, param.steps);
  }
  out["rule"] = held.rule;
  out["metadata"] = held.metadata;
  out["params"] = held.params.size();
  out["elements"] = elements;
  out["states"] = states;
  out["fewest_steps"] = fewest;
  out["most_steps"] = most;
  return out;
}

}  // namespace

void bind_checkpoint(nb::module_& m) {
  m.def(
      "describe_checkpoint", &describe, "path"_a,
      R"({"rule", "metadata", "params", "elements", "states": {format: {"params", "bytes"}}, "fewest_steps", "most_steps"}.
Parameters that have no state yet count under the format "none". ValueError, OSError.)");
}

}  // namespace lowtide::python
