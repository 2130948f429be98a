#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "core/error.h"
#include "optim/param_spec.h"
#include "param_binding.h"
#include "sign/sign_on.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowtide::python {
namespace {

GroupSpec spec_from(const std::string& rule, const HyperDict& hyper, const OptionDict& options) {
  return make_group(group_from(options, hyper_from(default_hyper(rule), hyper)), find_rule(rule));
}

void check_group(const std::string& rule, const HyperDict& hyper, const OptionDict& options,
                 const std::optional<HyperDict>& present, const std::vector<std::string>& codecs) {
  const GroupSpec group = spec_from(rule, present ? *present : hyper, options);
  const bool in_codec = std::find(codecs.begin(), codecs.end(), codec_info(group.codec).name) != codecs.end();
  check_change(group, hyper_from(group.hyper, hyper), !codecs.empty(), in_codec);
}

// True if the rule itself lists it.
bool lists(const std::string& rule, const std::string& name) {
  return std::ranges::any_of(rule_info(find_rule(rule)).hyper, [&](const RuleHyper& one) { return name == one.name; });
}

// The names in lowtide/hyper.def, and whether each is a flag; with a rule, those that it reads: all rules read
// hyper-parameters that no rule lists.
std::vector<std::pair<std::string, bool>> hyper_parameters(const std::string& rule) {
  const Hyper defaults;
  std::vector<std::pair<std::string, bool>> all;
  for_each_hyper(defaults, [&](const std::string& name, const auto& value) {
    const bool read = rule.empty() || lists(rule, name) ||
                      std::ranges::none_of(rule_names(), [&](const std::string& each) { return lists(each, name); });
    if (read) all.emplace_back(name, std::is_same_v<decltype(value), const bool&>);
  });
  return all;
}

using GroupOption = std::tuple<const char*, OptionValue, bool>;  // name, default (None: no text), fixed

std::vector<GroupOption> group_options() {
  std::vector<GroupOption> all;
  for_each_option(GroupOptions{}, [&]<class T>(const char* name, const T& value, bool fixed) {
    if constexpr (std::is_same_v<T, int64_t>) all.emplace_back(name, nb::cast(value), fixed);
    if constexpr (std::is_same_v<T, std::string>)
      all.emplace_back(name, value.empty() ? nb::object(nb::none()) : nb::cast(value), fixed);
  });
  return all;
}

LT_PYTHON_TYPE(Shape, tuple, "tuple[int, ...]");

// The state of a parameter, as Optimizer::state() returns it.
struct StateLayout {
  std::string codec;
  std::vector<std::tuple<std::string, std::string, Shape>> tensors;
};

StateLayout state_layout(const std::string& rule, const HyperDict& hyper, const OptionDict& options,
                         const std::vector<int64_t>& sizes, const std::string& dtype, const GivenWhole& whole,
                         bool fullest) {
  const ParamSpec spec = make_spec(spec_from(rule, hyper, options), sizes, dtype_named(dtype), whole_from(whole));
  const int of_rule = fullest ? spec.fullest_rule() : spec.rule;
  StateLayout out{codec_info(spec.codec).name, {}};
  for (int k = 0; k < spec.arrays(of_rule); ++k) {
    const StateView view = spec.view(of_rule, k);
    const nb::tuple code_sizes(nb::cast(ParamBinding::code_sizes(sizes, view)));
    out.tensors.emplace_back(view.name, ParamBinding::code_type(view), code_sizes);
    if (view.scales_per_row)
      out.tensors.emplace_back(std::string(view.name) + "_scale", "float32",
                               nb::make_tuple(view.rows, view.scales_per_row));
  }
  return out;
}

// A matrix of values and how it is stored.
CodecItem matrix_item(const std::string& codec, bool is_signed, int64_t rows, int64_t row_length) {
  LT_REQUIRE(
      rows >= 0 && row_length >= 0 && Layout::make(std::vector<int64_t>{rows, row_length}, {}).numel <= kMostElements,
      "got %lld rows of %lld values, wanted 0 or more and 2^52 values at most", ll(rows), ll(row_length));
  CodecItem item;
  item.codec = find_codec(codec);
  item.is_signed = is_signed;
  item.rows = rows;
  item.row_length = row_length;
  LT_REQUIRE(format_of(item).code_bits >= 8 || row_length % 2 == 0,
             "got rows of %lld values for '%s', two of which share a byte, wanted an even number", ll(row_length),
             codec.c_str());
  return item;
}

using Matrix = std::pair<int64_t, int64_t>;  // rows, and elements per row

std::tuple<const char*, Matrix, std::optional<Matrix>> code_sizes(const std::string& codec, bool is_signed,
                                                                  int64_t rows, int64_t row_length) {
  const StateFormat format = format_of(matrix_item(codec, is_signed, rows, row_length));
  const StateView view{.code_bits = format.code_bits};
  const int64_t codes = format.code_bits < 8 ? row_length * format.code_bits / 8 : row_length;
  const int64_t scales = blocks_per_row(row_length, kBlockElements) * format.scales;
  return {ParamBinding::code_type(view),
          {rows, codes},
          format.scales ? std::optional<Matrix>({rows, scales}) : std::nullopt};
}

void convert(bool encodes, CodecItem item, float* values, void* codes, float* scales) {
  LT_REQUIRE(item.rows * item.row_length == 0 || (values && codes && (scales || format_of(item).scales == 0)),
             "got no memory for values, codes or scales");
  if (item.rows * item.row_length == 0) return;
  item.values = values;
  item.codes = codes;
  item.scales = format_of(item).scales ? scales : nullptr;
  const nb::gil_scoped_release released;
  encodes ? sign::host_backend().encode(item, nullptr) : sign::host_backend().decode(item, nullptr);
}

}  // namespace

void bind_spec(nb::module_& m) {
  m.def("hyper_parameters", &hyper_parameters, "rule"_a = "",
        "The names of all, or of those that a rule reads, and whether each is a flag.");
  m.def("group_options", &group_options,
        "The options of a group but for its budget: name, default, and whether it is fixed when the group is added.");
  nb::class_<StateLayout>(m, "StateLayout", R"(The state of a parameter.

tensors: key, dtype and shape, as `Optimizer.state` has them but for "step".)")
      .def_ro("codec", &StateLayout::codec)
      .def_ro("tensors", &StateLayout::tensors);
  m.def(
      "check_group", &check_group, "rule"_a, "hyper"_a, "options"_a, "present"_a = nb::none(),
      "codecs"_a = std::vector<std::string>(),
      R"(Raises where `Optimizer.add_group` refuses the group. With `present`, the hyper-parameters of a group whose parameters
have these codecs, raises where `set_hyper` refuses the change.)");
  m.def(
      "state_layout", &state_layout, "rule"_a, "hyper"_a, "options"_a, "sizes"_a, "dtype"_a, "whole"_a = nb::none(),
      "fullest"_a = true,
      R"(State of a parameter of such a group. fullest: all states that it can have; else those of its hyper-parameters.)");
  // Addresses of contiguous host memory: float32 values [rows, row_length], codes, and scales (0: the codec has none).
  m.def("code_sizes", &code_sizes, "codec"_a, "signed"_a, "rows"_a, "row_length"_a,
        "The dtype of codes, their shape and that of scales.");
  m.def(
      "encode",
      [](const std::string& codec, bool is_signed, Address values, int64_t rows, int64_t row_length, Address codes,
         Address scales) { convert(true, matrix_item(codec, is_signed, rows, row_length), values, codes, scales); },
      "codec"_a, "signed"_a, "values"_a, "rows"_a, "row_length"_a, "codes"_a, "scales"_a);
  m.def(
      "decode",
      [](const std::string& codec, bool is_signed, Address codes, Address scales, int64_t rows, int64_t row_length,
         Address values) { convert(false, matrix_item(codec, is_signed, rows, row_length), values, codes, scales); },
      "codec"_a, "signed"_a, "codes"_a, "scales"_a, "rows"_a, "row_length"_a, "values"_a);
}

}  // namespace lowtide::python
