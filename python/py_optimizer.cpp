#include "py_optimizer.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <string_view>

#include "memory/store.h"

namespace lowtide::python {

namespace nb = nanobind;

namespace {

NonFinite nonfinite_from(const std::string& name) {
  if (name == "skip") return NonFinite::kSkip;
  if (name == "raise") return NonFinite::kRaise;
  if (name == "propagate") return NonFinite::kPropagate;
  throw nb::value_error(("got nonfinite='" + name + "', wanted 'skip', 'raise' or 'propagate'").c_str());
}

}  // namespace

PyOptimizer::PyOptimizer(const std::string& rule, const std::string& nonfinite, int threads,
                         const std::string& cpu_target, const GivenMemory& memory, const std::string& backend,
                         Address stream, const std::string& device, const std::string& target,
                         const AllocatorFunctions& allocator, uint64_t seed)
    : rule_(rule),
      shared_(std::make_shared<Core>(OptimizerOptions{.rule = rule,
                                                      .nonfinite = nonfinite_from(nonfinite),
                                                      .threads = threads,
                                                      .cpu_target = cpu_target,
                                                      .memory = memory_from(memory).value_or(Memory{}),
                                                      .backend = backend,
                                                      .device = target,
                                                      .stream = stream,
                                                      .allocator = {},
                                                      .trusts_memory = device != "cpu",  // torch guarantees it
                                                      .seed = seed},
                                     allocator)),
      core_(shared_->optimizer),
      binding_(core_, device) {}

int PyOptimizer::add_group(const HyperDict& hyper, const OptionDict& options, const GivenMemory& memory, int budget_of,
                           const std::string& rule) {
  GroupOptions group = group_from(options, hyper_from(default_hyper(rule.empty() ? rule_ : rule), hyper));
  group.memory = memory_from(memory), group.budget_of = budget_of, group.rule = rule;
  return core_.add_group(group);
}

void PyOptimizer::set_hyper(int group, const HyperDict& hyper) {
  core_.set_hyper(group, hyper_from(core_.hyper(group), hyper));
}

int64_t PyOptimizer::add_param(int group, const Tensor& param, bool with_state, const GivenWhole& whole) {
  const Busy busy(*this);
  return binding_.add(group, param, with_state, whole_from(whole));
}

int64_t PyOptimizer::step(double grad_scale, bool assume_finite, Address stream, int64_t free_bytes,
                          const std::optional<std::vector<int64_t>>& only,
                          const std::optional<std::vector<Address>>& directions,
                          const std::shared_ptr<QueuedClip>& clip, Address loss_scale, Address found_inf,
                          const std::optional<std::vector<GivenUpdate>>& updates,
                          const std::optional<GivenSums>& sums) {
  TermSums of_all;
  if (sums) {
    if (sums->first.size() != static_cast<size_t>(TermSums::kLimbs))
      throw nb::value_error("got sums of another size, wanted those of term_sums");
    of_all = TermSums::of_limbs(sums->first);
    if (!sums->second)
      for (ExactSum* const sum : {&of_all.below, &of_all.second}) sum->add(INFINITY, 0);
  }
  std::vector<float*> addresses;
  if (directions) addresses.assign(directions->begin(), directions->end());
  std::vector<Update> moves(updates ? static_cast<size_t>(core_.param_count()) : 0);
  for (const auto& [number, address, scale] : updates.value_or(std::vector<GivenUpdate>()))
    moves.at(static_cast<size_t>(number)) = {.data = address, .dtype = DType::kBF16, .scale = scale};
  const Busy busy(*this);
  const auto& grads = binding_.collect(only);
  const StepResult result = released([&] {
    return core_.step(grads, {.stream = stream,
                              .grad_scale = grad_scale,
                              .assume_finite = assume_finite,
                              .free_bytes = free_bytes,
                              .directions = addresses,
                              .preview = !addresses.empty(),
                              .updates = moves,
                              .clip = clip,
                              .scaling = {loss_scale, found_inf},
                              .sums = sums ? &of_all : nullptr});
  });
  if (result.applied && addresses.empty()) binding_.note_changed([&](size_t i) { return grads[i].data; });
  return result.applied || result.nonfinite_param >= 0 ? result.nonfinite_param : kOverflow;
}

int64_t PyOptimizer::check(double grad_scale, Address stream, bool assume_finite, int64_t free_bytes,
                           const std::optional<std::vector<int64_t>>& only) {
  const Busy busy(*this);
  const auto& grads = binding_.collect(only);
  const nb::gil_scoped_release nogil;
  const StepOptions options{
      .stream = stream, .grad_scale = grad_scale, .assume_finite = assume_finite, .free_bytes = free_bytes};
  return core_.check(grads, options).nonfinite_param;
}

// The exact sum of the squares of the gradients as the limbs of an ExactSum, and the largest magnitude as float bits.
std::pair<ExactSum::Limbs, int64_t> PyOptimizer::gradient_sums(const std::optional<std::vector<int64_t>>& only,
                                                               Address stream) {
  const Busy busy(*this);
  const auto& grads = binding_.collect(only);
  const nb::gil_scoped_release nogil;
  const auto sums = lowtide::gradient_sums(core_, grads, stream);
  return {sums.squares.limbs(), sums.largest};
}

GivenSums PyOptimizer::term_sums(double grad_scale, const std::optional<std::vector<int64_t>>& only, Address stream) {
  const Busy busy(*this);
  const auto& grads = binding_.collect(only);
  const nb::gil_scoped_release nogil;
  const TermSums sums = lowtide::term_sums(core_, grads, {.stream = stream, .grad_scale = grad_scale});
  return {sums.limbs(), sums.are_finite()};
}

std::shared_ptr<QueuedClip> PyOptimizer::queue_clip(double max_norm, double norm_type, double grad_scale, Address norm,
                                                    Address stream, Address loss_scale) {
  const Busy busy(*this);
  const auto& grads = binding_.collect();
  const nb::gil_scoped_release nogil;
  return core_.queue_clip_grad_norm(
      grads, max_norm, norm_type, norm,
      {.stream = stream, .grad_scale = grad_scale, .scaling = {.scale = loss_scale, .found_inf = nullptr}});
}

void PyOptimizer::prepare_replay(double grad_scale, Address stream) {
  alone([&] { core_.prepare_replay({.stream = stream, .grad_scale = grad_scale}); });
}

int64_t PyOptimizer::prefetch(int64_t bytes, Address stream) {
  return alone([&] { return core_.prefetch(bytes, stream); });
}

int64_t PyOptimizer::ballots(Address bits, Address presence, bool zero_is_plus, double grad_scale, bool assume_finite,
                             Address stream) {
  const Busy busy(*this);
  const auto& grads = binding_.collect();
  const SignBuffer out{bits, presence, nullptr};
  const StepOptions options{.stream = stream, .grad_scale = grad_scale, .assume_finite = assume_finite};
  const nb::gil_scoped_release nogil;
  return core_.ballots(grads, out, zero_is_plus, options).nonfinite_param;
}

void PyOptimizer::apply_signs(Address bits, Address presence, Address zeros, Address stream) {
  const Busy busy(*this);
  binding_.collect();  // follows parameters that moved
  released([&] { core_.apply_signs({bits, presence, zeros}, stream); });
  // Other workers may have had a gradient where this one has none.
  binding_.note_changed([](size_t) { return true; });
}

int64_t PyOptimizer::stepped_count() const {
  int64_t count = 0;
  for (int64_t param = 0; param < core_.param_count(); ++param) count += *core_.steps_address(param) > 0;
  return count;
}

std::vector<std::pair<std::string, bool>> PyOptimizer::states_of(int64_t param) const {
  std::vector<std::pair<std::string, bool>> all;
  for (const StateInfo& state : core_.states_of(param)) all.emplace_back(state.name, state.is_signed);
  return all;
}

TensorDict PyOptimizer::state(int64_t param) {
  TensorDict out;
  const nb::object owner = nb::cast(StateMemory{shared_});
  out["step"] = tensor(owner, const_cast<int64_t*>(core_.steps_address(param)), {}, nb::dtype<int64_t>());
  const std::vector<int64_t> sizes = binding_.sizes(param);
  for (const StateView& view : core_.state(param)) {
    const std::string scale = std::string(view.name) + "_scale";
    if (!view.numel) {  // a shard without rows has nothing to view
      auto [codes, scales] = binding_.empty_state(param, view);
      out[view.name] = codes;
      if (!scales.is_none()) out[scale.c_str()] = scales;
      continue;
    }
    if (!view.codes) continue;  // state that streams or is on a device: read_state copies it
    const std::string_view type_name = ParamBinding::code_type(view);
    const nb::dlpack::dtype type = type_name == "uint8"      ? nb::dtype<uint8_t>()
                                   : type_name == "int8"     ? nb::dtype<int8_t>()
                                   : type_name == "int16"    ? nb::dtype<int16_t>()
                                   : type_name == "bfloat16" ? nb::dlpack::dtype{4 /* bfloat */, 16, 1}
                                                             : nb::dtype<float>();
    out[view.name] = tensor(owner, view.codes, ParamBinding::code_sizes(sizes, view), type);
    if (view.scales)
      out[scale.c_str()] = tensor(owner, view.scales, {view.rows, view.scales_per_row}, nb::dtype<float>());
  }
  return out;
}

bool PyOptimizer::is_paged(int64_t param) const {
  const auto views = core_.state(param);
  return std::any_of(views.begin(), views.end(), [](const auto& v) { return !v.codes && v.numel; });
}

TensorDict PyOptimizer::read_state(int64_t param) {
  const Busy busy(*this);
  TensorDict out;
  out["step"] = nb::module_::import_("torch").attr("tensor")(core_.steps(param));
  int k = 0;
  for (const StateView& view : core_.state(param)) {
    const auto [codes, scales] = binding_.empty_state(param, view);
    core_.read_state(param, k++, binding_.address(codes), static_cast<float*>(binding_.address(scales)));
    out[view.name] = codes;
    if (!scales.is_none()) out[(std::string(view.name) + "_scale").c_str()] = scales;
  }
  return out;
}

void PyOptimizer::write_state(int64_t param, const TensorDict& tensors) {
  const Busy busy(*this);
  int k = 0;
  std::exception_ptr kept;  // thrown only after the other states have been written
  for (const StateView& view : core_.state(param)) {
    const std::string scale = std::string(view.name) + "_scale";
    try {
      core_.write_state(param, k++, binding_.address(tensors[view.name]),
                        tensors.contains(scale.c_str())
                            ? static_cast<const float*>(binding_.address(tensors[scale.c_str()]))
                            : nullptr);
    } catch (const KeptInMemory&) {
      kept = std::current_exception();
    }
  }
  if (kept) std::rethrow_exception(kept);
}

Tensor PyOptimizer::export_state(int64_t param, int k) {
  const Busy busy(*this);
  nb::object out = binding_.empty_like(param);
  core_.export_state(param, k, binding_.float_data(param, out));
  return out;
}

void PyOptimizer::import_state(int64_t param, int k, const Tensor& value) {
  const Busy busy(*this);
  core_.import_state(param, k, binding_.float_data(param, value));
}

Report PyOptimizer::report() {
  const MemoryReport r = [&] {
    const Busy busy(*this);  // another thread's step may be freeing what is counted here
    return core_.report();
  }();
  Report out;
#define LT_REPORT_FIELD(type, name, unit, meaning) out[#name] = r.name;
#include "lowtide/report.def"
  return out;
}

NumberDict number_dict(const std::vector<const char*>& names, const Carried& numbers) {
  NumberDict out;
  int k = 0;
  for (const char* const name : names) out[name] = numbers.of[k++];
  return out;
}

NumberDict PyOptimizer::carried(int64_t param) const {
  return number_dict(carried_names(core_, param), carried_of(core_, param));
}

void PyOptimizer::set_carried(int64_t param, const NumberDict& numbers) {
  Carried taken;
  int k = 0;
  for (const char* const name : carried_names(core_, param)) taken.of[k++] = nb::cast<double>(numbers[name]);
  lowtide::set_carried(core_, param, taken);
}

void PyOptimizer::set_evaluating(bool evaluating, Address stream) {
  const Busy busy(*this);
  std::vector<bool> moves;
  for (int64_t param = 0; param < core_.param_count(); ++param)
    moves.push_back(core_.evaluating(param) != evaluating && core_.has_state(param) && *core_.steps_address(param) > 0);
  binding_.follow_where([&](size_t param) { return moves[param]; });
  const auto note = [&] {
    binding_.note_changed(
        [&](size_t param) { return moves[param] && core_.evaluating(static_cast<int64_t>(param)) == evaluating; });
  };
  try {
    released([&] { core_.set_evaluating(evaluating, stream); });
  } catch (...) {
    note();
    throw;
  }
  note();
}

nb::object PyOptimizer::tensor(nb::handle owner, void* data, const std::vector<int64_t>& sizes,
                               nb::dlpack::dtype type) {
  const std::vector<size_t> shape(sizes.begin(), sizes.end());
  return nb::cast(nb::ndarray<nb::pytorch>(data, shape.size(), shape.data(), owner, nullptr, type));
}

}  // namespace lowtide::python
