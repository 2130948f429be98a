#include "optim/param_table.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/cpu/cpu_backend.h"
#include "backend/registry.h"
#include "core/error.h"
#include "core/thread_pool.h"

namespace lowtide {
namespace {

Layout checked_layout(const TensorView& view) {
  check_param_dtype(view.dtype);
  Layout layout = Layout::make(view.sizes, view.strides);
  LT_REQUIRE(layout.numel == 0 || view.data, "got a null pointer for a parameter of %lld elements", ll(layout.numel));
  LT_REQUIRE(!layout.overlaps_itself(),
             "two elements of the parameter may share one address (an expanded view?); step a copy of it instead");
  return layout;
}

using Range = std::pair<uintptr_t, uintptr_t>;

void append_range(const Parameter& param, std::vector<Range>& ranges) {
  const auto begin = reinterpret_cast<uintptr_t>(param.data);
  if (param.layout.numel)
    ranges.emplace_back(begin, begin + static_cast<uintptr_t>(param.layout.extent * dtype_bytes(param.dtype)));
}

bool any_overlap(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i)
    if (ranges[i].first < ranges[i - 1].second) return true;
  return false;
}

std::unique_ptr<Backend> open_elsewhere(const OptimizerOptions& options) {
  if (options.backend != "cpu") return open_backend(options.backend, options.device, options.stream);
  LT_REQUIRE(options.device.empty() && !options.stream,
             "got device '%s' and stream %p for the cpu backend, wanted none", options.device.c_str(), options.stream);
  return nullptr;
}

}  // namespace

Backends::Backends(const OptimizerOptions& options, std::unique_ptr<Backend> given)
    : host(cpu::make_backend(options.cpu_target)),
      elsewhere(given ? std::move(given) : open_elsewhere(options)),
      at_params(elsewhere ? *elsewhere : *host),
      device(at_params.device()) {
  set_threads(options.threads);
  if (options.trusts_memory && device) device->trust_memory();
  const DeviceAllocator& from = options.allocator;
  if (!from.allocate && !from.free && !from.note_use) return;
  LT_REQUIRE(from.allocate && from.free, "got an allocator without allocate or free, wanted both or neither");
  LT_REQUIRE(device, "got an allocator of device memory for parameters in host memory, wanted none");
  device->use_allocator({from.context, from.allocate, from.free});
  allocator = from;
}

void Backends::set_threads(int n) {
  LT_REQUIRE(n >= 0, "got threads=%d, wanted 0 (one per core) or more", n);
  threads = n ? n : available_threads();
}

void Backends::clear(void* at, int64_t bytes, void* stream) const {
  if (bytes == 0) return;
  if (device)
    device->fill(stream, at, 0, 1, bytes);
  else
    std::memset(at, 0, static_cast<size_t>(bytes));
}

void Backends::copy(void* to, const void* from, int64_t bytes, void* stream) const {
  if (bytes == 0) return;
  if (device)
    device->copy(stream, to, from, bytes);
  else
    std::memcpy(to, from, static_cast<size_t>(bytes));
}

kernels::NormSums* ParamTable::norm_sums() {
  if (norm_sums_room_ < params.size()) {
    norm_sums_ = on.at_params.norm_sums(static_cast<int64_t>(2 * params.size()));
    if (norm_sums_) norm_sums_room_ = 2 * params.size();
  }
  return norm_sums_;
}

const Layout& Parameter::gradient_layout(const Gradient& grad, size_t number) {
  LT_REQUIRE(grad.dtype == DType::kF32 || grad.dtype == DType::kBF16 || grad.dtype == DType::kF16,
             "got element type %d for the gradient of parameter %zu, wanted float32, bfloat16 or float16",
             static_cast<int>(grad.dtype), number);
  if (!grad.strides) return shape;
  const size_t dims = sizes.size();
  if (grad_strides.empty() || !std::equal(grad_strides.begin(), grad_strides.end(), grad.strides)) {
    // Both or neither: strides remembered for another layout would mislead the next step.
    Layout layout = Layout::make(sizes, {grad.strides, dims});
    grad_strides.reserve(dims);
    grad_layout = std::move(layout);
    grad_strides.assign(grad.strides, grad.strides + dims);
  }
  return grad_layout;
}

void Parameter::allocate_state(Arena& arena, int of_rule) {
  const StateShape stored = state_shape(of_rule);
  const Piece whole = whole_piece(stored);
  auto* record = static_cast<std::byte*>(arena.allocate(static_cast<size_t>(record_bytes(stored))));  // zeroed
  fill_zero(whole, record);
  for (int k = 0; k < whole.states; ++k) {
    codes[k] = record + whole.codes_at[k];
    if (whole.format[k].scales) scales[k] = reinterpret_cast<float*>(record + whole.scales_at[k]);
  }
  begin_state(of_rule);
}

ParamTable::ParamTable(const OptimizerOptions& options, Env& of_env, std::unique_ptr<Backend> device)
    : env(of_env),
      on(options, std::move(device)),
      rule(find_rule(options.rule)),
      nonfinite(options.nonfinite),
      seed(options.seed),
      opened_on_(on.allocator.allocate ? options.stream : nullptr) {
  add_residence(options.memory);
}

void ParamTable::add_residence(const Memory& memory) {
  residences.push_back(std::make_unique<Residence>(env, memory, on.at_params, on.allocator));
  residences.back()->tell(opened_on_);
}

int ParamTable::add_group(const GroupOptions& options) {
  GroupSpec group = make_group(options, rule, groups, residences.size());
  const RuleInfo& of = rule_info(group.rule);
  groups.reserve(groups.size() + 1);
  if (options.memory) add_residence(*options.memory);
  groups.push_back(std::move(group));
  needs_norms = needs_norms || of.norms;
  has_sums = has_sums || of.sums;
  has_average = has_average || rule_info(groups.back().rule).make_average_args;
  return static_cast<int>(groups.size()) - 1;
}

void ParamTable::set_hyper(int number, const Hyper& hyper) {
  const GroupSpec& group = group_at(number);
  bool has_params = false, in_codec = false;
  for (const Parameter& param : params) {
    if (param.group != number) continue;
    has_params = true;
    in_codec = in_codec || param.codec == group.codec;
  }
  check_change(group, hyper, has_params, in_codec);
  const int now = effective_rule(group.rule, hyper);
  for (const Parameter& param : params)
    LT_REQUIRE(param.group != number || !param.has_state || !param.has_residual() ||
                   param.states(now) <= param.states(param.state_rule),
               "got momentum=%g for parameters without a momentum buffer whose weights have a residual, wanted 0 as "
               "when they got their state: build a new optimizer",
               hyper.momentum);
  groups[static_cast<size_t>(number)].hyper = hyper;
  for (Parameter& param : params)
    if (param.group == number) follow_group(param);
}

// Follows a change of momentum to or from 0: SGD's state appears with momentum and stays.
void ParamTable::follow_group(Parameter& param) {
  const GroupSpec& group = group_of(param);
  const int now = effective_rule(group.rule, group.hyper);
  if (param.rule == now) return;
  ++changes;
  param.rule = now;
  if (param.states(now) > param.states(param.state_rule)) param.has_state = false;  // allocated by the next step
}

int64_t ParamTable::add_param(int group, const TensorView& view, bool with_state,
                              const std::optional<WholeParam>& whole) {
  onload();
  const GroupSpec& of = group_at(group);
  Layout layout = checked_layout(view);
  Parameter param(make_spec(of, view.sizes, view.dtype, whole));
  param.group = group;
  param.wants_state = with_state;
  bind(param, view, std::move(layout));
  Residence& residence = residence_of(param);
  Parameter* const added = &params.emplace_back(std::move(param));
  const int64_t number = static_cast<int64_t>(params.size()) - 1;
  if (with_state && !residence.waits()) {  // otherwise all wait for the first step
    try {
      residence.place({&added, 1}, {&number, 1});
    } catch (...) {
      params.pop_back();
      throw;
    }
  }
  return number;
}

void ParamTable::bind(Parameter& param, const TensorView& view, Layout layout) {
  param.data = view.data;
  param.dtype = view.dtype;
  param.layout = std::move(layout);
  ++changes;
  overlap_.reset();
}

void ParamTable::rebind(int64_t number, const TensorView& view) {
  Parameter& param = at(number);
  LT_REQUIRE(view.sizes == param.sizes, "the sizes of parameter %lld changed; build a new optimizer for it",
             ll(number));
  const int master = group_of(param).master;  // a float32 parameter has no residual, and other types would need one
  LT_REQUIRE(view.dtype == param.dtype || !master_info(master).residual_bits,
             "the element type of parameter %lld, whose group has master='%s', changed; build a new optimizer for it",
             ll(number), master_info(master).name);
  Layout layout = checked_layout(view);
  param.master = master_for(group_of(param), view.dtype);
  bind(param, view, std::move(layout));
}

const GroupSpec& ParamTable::group_at(int group) const {
  LT_REQUIRE(group >= 0 && group < static_cast<int>(groups.size()), "got group %d, wanted one of the %zu groups", group,
             groups.size());
  return groups[static_cast<size_t>(group)];
}

Parameter& ParamTable::at(int64_t param) {
  LT_REQUIRE(param >= 0 && param < static_cast<int64_t>(params.size()),
             "got parameter %lld, wanted one of the %zu parameters", ll(param), params.size());
  return params[static_cast<size_t>(param)];
}

Parameter& ParamTable::with_state(int64_t number, int k) {
  Parameter& param = at(number);
  const int states = param.has_state ? param.arrays(param.state_rule) : 0;
  LT_REQUIRE(k >= 0 && k < states, "got state %d of parameter %lld, which has %d", k, ll(number), states);
  return param;
}

void ParamTable::require_whole(const Parameter& param, size_t number) const {
  LT_REQUIRE(!param.partially_written,
             "the state of parameter %zu was being replaced when that failed, and is part old, part new: load or write "
             "it again",
             number);
}

void ParamTable::place(size_t number, std::span<const Gradient> grads) {
  ++changes;
  if (Parameter& param = params[number]; param.layout.numel == 0)  // nothing to store
    return param.begin_state(param.rule);
  Residence& residence = residence_of(params[number]);
  std::vector<Parameter*> together;
  std::vector<int64_t> numbers;
  for (size_t i = residence.waits() ? 0 : number; i < (residence.waits() ? params.size() : number + 1); ++i) {
    Parameter& param = params[i];
    const bool wants = param.wants_state || (i < grads.size() && grads[i].data);
    const bool waiting = !param.has_state && wants && param.layout.numel > 0 && &residence_of(param) == &residence;
    if (i != number && !waiting) continue;
    together.push_back(&param);
    numbers.push_back(static_cast<int64_t>(i));
  }
  residence.place(together, numbers);
}

void ParamTable::place_waiting() {
  for (size_t i = 0; i < params.size(); ++i)
    if (const Parameter& param = params[i]; param.wants_state && !param.has_state && residence_of(param).waits())
      place(i, {});
}

void ParamTable::allocate_states(size_t number, int of_rule) {
  Parameter& param = params[number];
  // Beside a residual, only the states in use exist.
  if (param.has_state && (param.has_residual() || param.states(param.state_rule) >= param.states(of_rule))) return;
  const int effective = std::exchange(param.rule, of_rule);
  const bool had = std::exchange(param.has_state, false);
  try {
    place(number, {});
  } catch (...) {
    param.rule = effective;
    param.has_state = had;
    throw;
  }
  param.rule = effective;
}

bool ParamTable::find_overlap() const {
  std::vector<Range> ranges;
  for (const Parameter& param : params) append_range(param, ranges);
  return any_overlap(std::move(ranges));
}

bool ParamTable::overlap(std::span<const int64_t> stepped) const {
  std::vector<Range> ranges;
  for (const int64_t param : stepped) append_range(params[static_cast<size_t>(param)], ranges);
  return any_overlap(std::move(ranges));
}

}  // namespace lowtide
