// The Python module lowtide._core: general functions, and the calls that bind everything else.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "arguments.h"
#include "backend/gradient_limit.h"
#include "backend/plugin.h"
#include "backend/registry.h"
#include "core/env.h"
#include "core/sizes.h"
#include "lowtide/backends.h"
#include "optim/carried.h"
#include "optim/checkpoint.h"
#include "optim/gradient_norm.h"
#include "py_optimizer.h"
#include "tensor_reader.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace lowtide::python;
using lowtide::for_each_hyper;

namespace {

// Tells the library where plug-ins are that are separate Python packages. Skips a package that cannot be found:
// backends() reports it as missing.
void add_plugin_folders() {
  for (const lowtide::PluginPackage& one : lowtide::kPluginPackages) {
    try {
      const nb::object spec = nb::module_::import_("importlib.util").attr("find_spec")(one.package);
      if (spec.is_none()) continue;
      for (const nb::handle folder : spec.attr("submodule_search_locations"))
        lowtide::add_plugin_folder(nb::cast<std::string>(folder));
    } catch (const nb::python_error&) {  // from a foreign finder in sys.meta_path
    }
  }
}

FieldDict describe_checkpoint(const std::string& path) {
  const lowtide::CheckpointFile file(lowtide::system_env(), path);
  const lowtide::Checkpoint& held = file.contents();
  FieldDict out;
  nb::dict states;
  int64_t elements = 0, fewest = held.params.empty() ? 0 : held.params.front().steps, most = 0;
  for (const lowtide::CheckpointParam& param : held.params) {
    int64_t numel = 1, bytes = 0;
    for (const int64_t size : param.sizes) numel *= size;
    for (const lowtide::CheckpointState& state : param.states) bytes += state.code_bytes + state.scale_bytes;
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

NB_MODULE(_core, m) {
  m.attr("__version__") = lowtide::version();
  nb::set_leak_warnings(false);  // a library does not print; torch's hooks can keep parameters alive until the process
                                 // ends
  bind_errors(m);
  add_plugin_folders();
  m.def("rule_names", &lowtide::rule_names);
  m.def(
      "rules_with_sums",
      [] {
        std::vector<std::string> names = lowtide::rule_names();
        std::erase_if(names,
                      [](const std::string& name) { return !lowtide::rule_info(lowtide::find_rule(name)).sums; });
        return names;
      },
      "The rules whose steps need sums over all parameters, and so all gradients at once.");
  m.def("codec_names", &lowtide::codec_names);
  m.def("state_names", &lowtide::state_names, "rule"_a);
  m.def("cpu_targets", &lowtide::cpu_targets, "Instruction-set paths that this CPU can run, best first.");
  m.def("backends", [] {
    FieldDict out;
    for (const lowtide::BackendReport& report : released(lowtide::report_backends)) {
      nb::dict entry;
      entry["available"] = report.available;
      entry["detail"] = report.detail;
      out[report.name.c_str()] = entry;
    }
    return out;
  });
  m.def("report_fields", [] {
    std::vector<std::tuple<const char*, const char*, const char*>> out;  // (name, unit, meaning), in order
#define LT_REPORT_FIELD(type, name, unit, meaning) out.emplace_back(#name, unit, meaning);
#include "lowtide/report.def"
    return out;
  });
  m.def(
      "same_objects",
      [](const nb::list& a, const nb::list& b) {
        return nb::len(a) == nb::len(b) &&
               std::equal(a.begin(), a.end(), b.begin(), [](nb::handle x, nb::handle y) { return x.is(y); });
      },
      "a"_a, "b"_a, nb::sig("def same_objects(a: list[Any], b: list[Any]) -> bool"),
      "Whether two lists have the very same objects in the same order.");
  m.attr("SQUARE_SUM_LIMBS") = lowtide::ExactSum::kLimbs;
  m.def(
      "clip_to",
      [](const lowtide::ExactSum::Limbs& squares, int64_t largest, double norm_type, double max_norm, double factor) {
        lowtide::cpu::GradientSums sums;
        sums.squares.set_limbs(squares);
        sums.largest = static_cast<uint32_t>(largest);
        const auto clip = lowtide::clip_of(sums, lowtide::clip_request(max_norm, norm_type, factor));
        return std::tuple(clip.norm, clip.factor, clip.clipped);
      },
      "squares"_a, "largest"_a, "norm_type"_a, "max_norm"_a, "factor"_a,
      "The norm of gradients times `factor`, by their sums (`Optimizer.gradient_sums`); the factor that clips them, "
      "and the norm that it leaves.");
  m.def("checkpoint_metadata", &lowtide::checkpoint_metadata, "path"_a);
  m.def(
      "describe_checkpoint", &describe_checkpoint, "path"_a,
      R"({"rule", "metadata", "params", "elements", "states": {format: {"params", "bytes"}}, "fewest_steps", "most_steps"}.
Parameters that have no state yet count under the format "none". ValueError, OSError.)");
  m.def("parse_bytes", &lowtide::parse_bytes, "text"_a, "\"2GiB\" as 2147483648.");
  m.def("format_bytes", &lowtide::format_bytes, "bytes"_a, "1610612736 as \"1.50 GiB\".");
  m.def(
      "join_master",
      [](const std::string& master, const std::string& dtype, Address weights, Address residual, int64_t n,
         Address out) { lowtide::join_master(master, dtype_named(dtype), weights, residual, n, out); },
      "master"_a, "dtype"_a, "weights"_a, "residual"_a, "n"_a, "out"_a, kReleased);
  m.def(
      "split_master",
      [](const std::string& master, const std::string& dtype, Address values, int64_t n, Address weights,
         Address residual) { lowtide::split_master(master, dtype_named(dtype), values, n, weights, residual); },
      "master"_a, "dtype"_a, "values"_a, "n"_a, "weights"_a, "residual"_a, kReleased);
  m.def(
      "default_hyper",
      [](const std::string& rule) {
        lowtide::Hyper h = lowtide::default_hyper(rule);
        HyperDict out;
        for_each_hyper(h, [&](const char* name, auto& value) { out[name] = value; });
        return out;
      },
      "rule"_a, "All hyper-parameters of the core, with the rule's defaults.");
  m.def(
      "carried_range",
      [](const std::string& name) {
        for (const lowtide::RuleInfo& rule : lowtide::rules()) {
          int k = 0;
          for (const char* const own : rule.carried_names)
            if (const int at = k++; name == own)
              return std::tuple(rule.least_carried(at), rule.most_carried(at), at == rule.switches);
        }
        throw nb::value_error(("no rule carries '" + name + "'").c_str());
      },
      "name"_a, "Of a number that a rule carries beside states: its least and its largest value; whether it is whole.");
  m.attr("OVERFLOW") = PyOptimizer::kOverflow;
  m.attr("TERM_SUM_LIMBS") = lowtide::TermSums::kLimbs;
  m.def(
      "carried_as_now",
      [](const std::string& rule, const HyperDict& hyper, int64_t steps) {
        const lowtide::Hyper h = hyper_from(lowtide::default_hyper(rule), hyper);
        const int effective = lowtide::effective_rule(lowtide::find_rule(rule), h);
        const lowtide::Carried numbers = lowtide::carried_as_now(effective, h, steps);
        return number_dict(lowtide::rule_info(effective).carried_names, numbers);
      },
      "rule"_a, "hyper"_a, "steps"_a, "What the rule carries beside states after so many steps with these options.");
  m.attr("GRADIENT_LIMIT") = lowtide::kGradientLimit;  // a step treats smaller magnitudes as finite
  bind_planning(m);
  bind_collective(m);
  bind_sign(m);
  bind_spec(m);
  bind_mapped_file(m);
  bind_measured(m);
  bind_optimizer(m);
}
