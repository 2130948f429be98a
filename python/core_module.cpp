// The Python module lowtide._core: lowtide::Optimizer plus the torch tensors it steps. It needs no torch headers and no
// torch ABI: tensor_reader.h reads tensors, and states go out through DLPack.
//
// Threads: the GIL is held but for the calls that can take long. An optimizer refuses a second call meanwhile.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "arguments.h"
#include "core/sizes.h"
#include "lowtide/backends.h"
#include "memory/store.h"
#include "optim/gradient_norm.h"
#include "optim/joint_checkpoint.h"
#include "optim/mu_product.h"
#include "param_binding.h"
#include "plugin_folders.h"
#include "python_allocator.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace lowtide::python;
using lowtide::for_each_hyper;

namespace {

lowtide::NonFinite nonfinite_from(const std::string& name) {
  if (name == "skip") return lowtide::NonFinite::kSkip;
  if (name == "raise") return lowtide::NonFinite::kRaise;
  if (name == "propagate") return lowtide::NonFinite::kPropagate;
  throw nb::value_error(("got nonfinite='" + name + "', wanted 'skip', 'raise' or 'propagate'").c_str());
}

// The optimizer, and the source of its device memory.
struct Core {
  Core(lowtide::OptimizerOptions options, const AllocatorFunctions& functions)
      : allocator(functions), optimizer([&] {
          options.allocator = allocator.callbacks();
          return options;
        }()) {}
  PythonAllocator allocator;
  lowtide::Optimizer optimizer;
};

// Tensors of state keep this alive: the memory without the parameters. If they kept the whole optimizer, a parameter
// that refers to its optimizer would close a cycle through memory that the garbage collector cannot see into.
struct StateMemory {
  std::shared_ptr<Core> core;
};

// The Python object: owns the optimizer and references to the tensors of its parameters. Refuses calls that change it
// while another thread is in a call (steps release the GIL).
class PyOptimizer {
 public:
  PyOptimizer(const std::string& rule, const std::string& nonfinite, int threads, const std::string& cpu_target,
              const GivenMemory& memory, const std::string& backend, Address stream, const std::string& device,
              const std::string& target, const AllocatorFunctions& allocator, uint64_t seed)
      : rule_(rule),
        shared_(
            std::make_shared<Core>(lowtide::OptimizerOptions{.rule = rule,
                                                             .nonfinite = nonfinite_from(nonfinite),
                                                             .threads = threads,
                                                             .cpu_target = cpu_target,
                                                             .memory = memory_from(memory).value_or(lowtide::Memory{}),
                                                             .backend = backend,
                                                             .device = target,
                                                             .stream = stream,
                                                             .allocator = {},
                                                             .seed = seed},
                                   allocator)),
        core_(shared_->optimizer),
        binding_(core_, device) {}

  int add_group(const HyperDict& hyper, const std::string& state, int64_t min_quantized_numel,
                const GivenMemory& memory, const std::string& rounding, const std::string& master, int budget_of,
                const std::string& rule) {
    const lowtide::Hyper defaults = lowtide::default_hyper(rule.empty() ? rule_ : rule);
    return core_.add_group({hyper_from(defaults, hyper), state, min_quantized_numel, memory_from(memory), rounding,
                            master, budget_of, rule});
  }
  void set_hyper(int group, const HyperDict& hyper) { core_.set_hyper(group, hyper_from(core_.hyper(group), hyper)); }
  int64_t add_param(int group, const Tensor& param, bool with_state, const GivenWhole& whole) {
    const Busy busy(*this);
    return binding_.add(group, param, with_state, whole_from(whole));
  }

  int64_t step(double grad_scale, bool assume_finite, Address stream, int64_t free_bytes,
               const std::optional<std::vector<int64_t>>& only, const std::optional<std::vector<Address>>& directions) {
    std::vector<float*> addresses;
    if (directions) addresses.assign(directions->begin(), directions->end());
    const Busy busy(*this);
    const auto& grads = binding_.collect(only);
    const lowtide::StepResult result = released([&] {
      return core_.step(grads, {.stream = stream,
                                .grad_scale = grad_scale,
                                .assume_finite = assume_finite,
                                .free_bytes = free_bytes,
                                .directions = addresses});
    });
    if (result.applied)
      binding_.note_changed([&](size_t i) { return grads[i].data && (addresses.empty() || !addresses[i]); });
    return result.nonfinite_param;
  }
  int64_t check(double grad_scale, Address stream, bool assume_finite, int64_t free_bytes,
                const std::optional<std::vector<int64_t>>& only) {
    const Busy busy(*this);
    const auto& grads = binding_.collect(only);
    const nb::gil_scoped_release nogil;
    const lowtide::StepOptions options{
        .stream = stream, .grad_scale = grad_scale, .assume_finite = assume_finite, .free_bytes = free_bytes};
    return core_.check(grads, options).nonfinite_param;
  }
  // The exact sum of the squares of the gradients as the limbs of an ExactSum, and the largest magnitude as float bits.
  std::pair<lowtide::ExactSum::Limbs, int64_t> gradient_sums(const std::optional<std::vector<int64_t>>& only) {
    const Busy busy(*this);
    const auto& grads = binding_.collect(only);
    const nb::gil_scoped_release nogil;
    const auto sums = lowtide::gradient_sums(core_, grads);
    return {sums.squares.limbs(), sums.largest};
  }
  void prepare_replay(double grad_scale, Address stream) {
    alone([&] { core_.prepare_replay({.stream = stream, .grad_scale = grad_scale}); });
  }
  int64_t prefetch(int64_t bytes, Address stream) {
    return alone([&] { return core_.prefetch(bytes, stream); });
  }

  int64_t ballots(Address bits, Address presence, bool zero_is_plus, double grad_scale, bool assume_finite,
                  Address stream) {
    const Busy busy(*this);
    const auto& grads = binding_.collect();
    const lowtide::SignBuffer out{bits, presence, nullptr};
    const lowtide::StepOptions options{.stream = stream, .grad_scale = grad_scale, .assume_finite = assume_finite};
    const nb::gil_scoped_release nogil;
    return core_.ballots(grads, out, zero_is_plus, options).nonfinite_param;
  }
  void apply_signs(Address bits, Address presence, Address zeros, Address stream) {
    const Busy busy(*this);
    binding_.collect();  // follows parameters that moved
    released([&] { core_.apply_signs({bits, presence, zeros}, stream); });
    // Other workers may have had a gradient where this one has none.
    binding_.note_changed([](size_t) { return true; });
  }

  int64_t state_count() const {
    int64_t count = 0;
    for (int64_t param = 0; param < core_.param_count(); ++param) count += core_.has_state(param);
    return count;
  }

  std::vector<std::pair<std::string, bool>> states_of(int64_t param) const {
    std::vector<std::pair<std::string, bool>> all;
    for (const lowtide::StateInfo& state : core_.states_of(param)) all.emplace_back(state.name, state.is_signed);
    return all;
  }

  TensorDict state(int64_t param) {
    TensorDict out;
    const nb::object owner = nb::cast(StateMemory{shared_});
    out["step"] = tensor(owner, const_cast<int64_t*>(core_.steps_address(param)), {}, nb::dtype<int64_t>());
    const std::vector<int64_t> sizes = binding_.sizes(param);
    for (const lowtide::StateView& view : core_.state(param)) {
      const std::string scale = std::string(view.name) + "_scale";
      if (!view.numel) {  // a shard of no rows: there is nothing to view
        auto [codes, scales] = binding_.empty_state(param, view);
        out[view.name] = codes;
        if (!scales.is_none()) out[scale.c_str()] = scales;
        continue;
      }
      if (!view.codes) continue;  // streamed, or on a device: read_state copies it
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

  bool is_paged(int64_t param) const {
    const auto views = core_.state(param);
    return std::any_of(views.begin(), views.end(), [](const auto& v) { return !v.codes && v.numel; });
  }
  TensorDict read_state(int64_t param) {
    const Busy busy(*this);
    TensorDict out;
    out["step"] = nb::module_::import_("torch").attr("tensor")(core_.steps(param));
    int k = 0;
    for (const lowtide::StateView& view : core_.state(param)) {
      const auto [codes, scales] = binding_.empty_state(param, view);
      core_.read_state(param, k++, binding_.address(codes), static_cast<float*>(binding_.address(scales)));
      out[view.name] = codes;
      if (!scales.is_none()) out[(std::string(view.name) + "_scale").c_str()] = scales;
    }
    return out;
  }
  void write_state(int64_t param, const TensorDict& tensors) {
    const Busy busy(*this);
    int k = 0;
    std::exception_ptr kept;  // thrown only when the other states have been written, too
    for (const lowtide::StateView& view : core_.state(param)) {
      const std::string scale = std::string(view.name) + "_scale";
      try {
        core_.write_state(param, k++, binding_.address(tensors[view.name]),
                          tensors.contains(scale.c_str())
                              ? static_cast<const float*>(binding_.address(tensors[scale.c_str()]))
                              : nullptr);
      } catch (const lowtide::KeptInMemory&) {
        kept = std::current_exception();
      }
    }
    if (kept) std::rethrow_exception(kept);
  }

  Tensor export_state(int64_t param, int k) {
    const Busy busy(*this);
    nb::object out = binding_.empty_like(param);
    core_.export_state(param, k, binding_.float_data(param, out));
    return out;
  }
  void import_state(int64_t param, int k, const Tensor& value) {
    const Busy busy(*this);
    core_.import_state(param, k, binding_.float_data(param, value));
  }

  Report report() {
    const lowtide::MemoryReport r = [&] {
      const Busy busy(*this);  // a step of another thread may be giving up what is counted here
      return core_.report();
    }();
    Report out;
#define LT_REPORT_FIELD(type, name, unit, meaning) out[#name] = r.name;
#include "lowtide/report.def"
    return out;
  }

  double mu_product(int64_t param) const { return lowtide::mu_product(core_, param); }
  void set_mu_product(int64_t param, double product) { lowtide::set_mu_product(core_, param, product); }

  ParamBinding& binding() { return binding_; }

  // Calls fn(all their optimizers) without the GIL while no other call may change one of them.
  template <class Fn>
  static auto together(const std::vector<PyOptimizer*>& all, Fn&& fn) {
    std::deque<Busy> busy;
    std::vector<lowtide::Optimizer*> cores;
    for (PyOptimizer* const each : all) {
      busy.emplace_back(*each);
      cores.push_back(&each->core_);
    }
    return released([&] { return fn(cores); });
  }

  // Calls fn without the GIL while no other call may change the optimizer.
  template <class Fn>
  std::invoke_result_t<Fn> alone(Fn&& fn) {
    const Busy busy(*this);
    return released(fn);
  }

  // Methods of the core as functions to bind; core_alone: called as alone() says.
  template <class R, class... A>
  static auto core(R (lowtide::Optimizer::*method)(A...)) {
    return [method](PyOptimizer& self, A... args) { return (self.core_.*method)(args...); };
  }
  template <class R, class... A>
  static auto core(R (lowtide::Optimizer::*method)(A...) const) {
    return [method](const PyOptimizer& self, A... args) { return (self.core_.*method)(args...); };
  }
  template <class R, class... A>
  static auto core_alone(R (lowtide::Optimizer::*method)(A...)) {
    return [method](PyOptimizer& self, A... args) { return self.alone([&] { return (self.core_.*method)(args...); }); };
  }
  template <class R, class... A>
  static auto core_alone(R (lowtide::Optimizer::*method)(A...) const) {
    return [method](PyOptimizer& self, A... args) { return self.alone([&] { return (self.core_.*method)(args...); }); };
  }

 private:
  // Marks the optimizer as in use for the length of a call; made and destroyed under the GIL. In the end it releases
  // the gradients that the call held.
  class Busy {
   public:
    explicit Busy(PyOptimizer& self) : self_(self) {
      if (self.busy_) throw nb::value_error("this optimizer is in use by another thread; wait for its call to return");
      self.busy_ = true;
    }
    ~Busy() {
      self_.binding_.release();
      self_.busy_ = false;
    }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;

   private:
    PyOptimizer& self_;
  };

  // Makes a torch tensor over the optimizer's memory; it keeps `owner` alive.
  static nb::object tensor(nb::handle owner, void* data, const std::vector<int64_t>& sizes, nb::dlpack::dtype type) {
    const std::vector<size_t> shape(sizes.begin(), sizes.end());
    return nb::cast(nb::ndarray<nb::pytorch>(data, shape.size(), shape.data(), owner, nullptr, type));
  }

  std::string rule_;
  std::shared_ptr<Core> shared_;
  lowtide::Optimizer& core_;
  ParamBinding binding_;
  bool busy_ = false;
};

// Parameters refer to the optimizer (hooks, closures) and it refers to them: shows the cycle to the garbage collector.
int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  return nb::inst_ptr<PyOptimizer>(self)->binding().visit([&](PyObject* object) { return visit(object, arg); });
}
int clear(PyObject* self) {
  nb::inst_ptr<PyOptimizer>(self)->binding().clear();
  return 0;
}
PyType_Slot kSlots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)}, {Py_tp_clear, reinterpret_cast<void*>(clear)}, {0, nullptr}};

}  // namespace

NB_MODULE(_core, m) {
  m.attr("__version__") = lowtide::version();
  nb::set_leak_warnings(false);  // a library does not print; torch's own hooks can keep parameters to the very end
  nb::class_<StateMemory>(m, "StateMemory");
  bind_errors(m);
  add_plugin_folders();
  m.def("rule_names", &lowtide::rule_names);
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
      [](const nb::handle& a, const nb::handle& b) {
        const nb::object x = nb::steal(PySequence_Fast(a.ptr(), "wanted a list")),
                         y = nb::steal(PySequence_Fast(b.ptr(), "wanted a list"));
        if (!x || !y) throw nb::python_error();
        const Py_ssize_t n = PySequence_Fast_GET_SIZE(x.ptr());
        PyObject** const first = PySequence_Fast_ITEMS(x.ptr());
        return n == PySequence_Fast_GET_SIZE(y.ptr()) && std::equal(first, first + n, PySequence_Fast_ITEMS(y.ptr()));
      },
      "a"_a, "b"_a, "Whether two lists have the very same objects in the same order.");
  m.def(
      "limbs_of",
      [](double square) {
        lowtide::ExactSum sum;
        int exponent = 0;
        const double fraction = std::frexp(square, &exponent);
        sum.add_count(static_cast<uint64_t>(std::ldexp(fraction, 53)), exponent - 53);
        return sum.limbs();
      },
      "square"_a, "A number of 0 or more, from 2^-300 to 2^300, as `Optimizer.gradient_sums` has sums.");
  m.def(
      "clip_to",
      [](const lowtide::ExactSum::Limbs& squares, int64_t largest, double norm_type, double max_norm, double factor) {
        lowtide::cpu::GradientSums sums;
        sums.squares.set_limbs(squares);
        sums.largest = static_cast<uint32_t>(largest);
        const auto clipped = lowtide::clip_to(lowtide::gradient_norm(sums, norm_type, factor), max_norm, factor);
        return std::tuple(clipped.norm, clipped.grad_scale, clipped.finite);
      },
      "squares"_a, "largest"_a, "norm_type"_a, "max_norm"_a, "factor"_a,
      "The norm of gradients times `factor`, by their sums (`Optimizer.gradient_sums`); the factor that clips them, "
      "and "
      "whether a step with it need not look for gradients that are not finite.");
  m.def("checkpoint_metadata", &lowtide::checkpoint_metadata, "path"_a);
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
      "mu_product",
      [](double beta1, double momentum_decay, int64_t steps) {
        lowtide::Hyper hyper;
        hyper.beta1 = beta1, hyper.momentum_decay = momentum_decay;
        return lowtide::mu_product_of(hyper, steps);
      },
      "beta1"_a, "momentum_decay"_a, "steps"_a, "NAdam's product of mu in so many steps.");
  m.attr("NO_MU_PRODUCT") = lowtide::kNoMuProduct;  // a product at or below it stays as it is
  bind_planning(m);
  bind_checkpoint(m);
  bind_collective(m);
  bind_sign(m);
  bind_spec(m);
  nb::class_<PyOptimizer>(
      m, "Optimizer", nb::type_slots(kSlots),
      "lowtide::Optimizer and the parameters' tensors. Bad values raise ValueError and change nothing.")
      .def(nb::init<const std::string&, const std::string&, int, const std::string&, const GivenMemory&,
                    const std::string&, Address, const std::string&, const std::string&, const AllocatorFunctions&,
                    uint64_t>(),
           "rule"_a, "nonfinite"_a = "skip", "threads"_a = 0, "cpu_target"_a = "", "memory"_a = nb::none(),
           "backend"_a = "cpu", "stream"_a = 0, "device"_a = "cpu", "target"_a = "", "allocator"_a = nb::none(),
           "seed"_a = 0,
           R"(stream: a queue of the backend, whose device and context are those of all steps; 0: its own.
device: of parameters and gradients, as str(tensor.device) has it. target: the backend's name of that device.
allocator: where its memory comes from; None: the driver. It is called by any method, and when the optimizer and all
views of its state are gone.)")
      .def("add_group", &PyOptimizer::add_group, "hyper"_a, "state"_a, "min_quantized_numel"_a, "memory"_a = nb::none(),
           "rounding"_a = "auto", "master"_a = "", "budget_of"_a = -1, "rule"_a = "",
           "budget_of: the group whose budget it shares; -1: the optimizer's. rule: another than the optimizer's.")
      .def("set_rounding", PyOptimizer::core(&lowtide::Optimizer::set_rounding), "group"_a, "rounding"_a)
      .def("set_seed", PyOptimizer::core(&lowtide::Optimizer::set_seed), "seed"_a)
      .def("set_hyper", &PyOptimizer::set_hyper, "group"_a, "hyper"_a)
      .def("set_threads", PyOptimizer::core(&lowtide::Optimizer::set_threads), "threads"_a)
      .def(
          "add_param", &PyOptimizer::add_param, "group"_a, "param"_a, "with_state"_a = true, "whole"_a = nb::none(),
          R"(Registers a strided tensor of float32, bfloat16 or float16 on the device; returns its number (0, 1, ... over all
groups). whole: of a shard, see shard_of in lowtide.devices.flattened.)")
      .def("place_states", PyOptimizer::core_alone(&lowtide::Optimizer::place_states))
      .def("check", &PyOptimizer::check, "grad_scale"_a = 1.0, "stream"_a = 0, "assume_finite"_a = false,
           "free_bytes"_a = -1, "only"_a = nb::none(),
           "The result that `step` would return, without stepping. Raises what `step` would refuse.")
      .def(
          "step", &PyOptimizer::step, "grad_scale"_a = 1.0, "assume_finite"_a = false, "stream"_a = 0,
          "free_bytes"_a = -1, "only"_a = nb::none(), "directions"_a = nb::none(),
          R"(One step over every parameter whose `.grad` is not None. Returns -1 when applied or not known yet, else (skipped)
the number of the first parameter with a non-finite gradient. Releases the GIL while computing.

free_bytes: see lowtide::StepOptions. only: parameters with other numbers count as without a gradient. directions: of
each parameter an address of contiguous float32, or 0: it gets what would be subtracted, without learning rate and
weight decay, and the parameter stays.)")
      .def("gradient_sums", &PyOptimizer::gradient_sums, "only"_a = nb::none(),
           "The exact sum of the squares of the gradients on the CPU, as numbers of 32 bits that may be added to those "
           "of "
           "others, and the largest magnitude as float bits.")
      .def("prepare_replay", &PyOptimizer::prepare_replay, "grad_scale"_a = 1.0, "stream"_a = 0)
      .def("prefetch", &PyOptimizer::prefetch, "bytes"_a, "stream"_a = 0)
      .def("demote", PyOptimizer::core_alone(&lowtide::Optimizer::demote), "bytes"_a)
      .def("synchronize", PyOptimizer::core_alone(&lowtide::Optimizer::synchronize))
      .def("sign_count", PyOptimizer::core(&lowtide::Optimizer::sign_count),
           "Signs of all parameters, each padded to a multiple of SIGN_ALIGNMENT.")
      .def(
          "ballots", &PyOptimizer::ballots, "bits"_a, "presence"_a, "zero_is_plus"_a, "grad_scale"_a, "assume_finite"_a,
          "stream"_a,
          R"(As `step`, but no parameter moves: the addresses get the signs of what would be subtracted, and the blocks that
are not all zeros. Both are written whole.)")
      .def("apply_signs", &PyOptimizer::apply_signs, "bits"_a, "presence"_a, "zeros"_a, "stream"_a,
           "Moves all parameters by signs (zeros: 0 for none), with lr and weight_decay of their groups. Counts no "
           "step.")
      .def("has_state", PyOptimizer::core(&lowtide::Optimizer::has_state), "param"_a)
      .def("state_count", &PyOptimizer::state_count, "Parameters with state. Unlike `report` it waits for nothing.")
      .def("allocate_state", PyOptimizer::core(&lowtide::Optimizer::allocate_state), "param"_a)
      .def(
          "states_of", &PyOptimizer::states_of, "param"_a,
          R"(Name, and whether it takes both signs, of every state that the parameter has or can be given, in the order of
`state`, `export_state` and `import_state`.)")
      .def("state_codec", PyOptimizer::core(&lowtide::Optimizer::state_codec), "param"_a,
           "The codec in use for this parameter (float32 for small ones).")
      .def(
          "state", &PyOptimizer::state, "param"_a,
          R"(Views (no copies) of the live state: "step" int64 (), NAME with the parameter's sizes (float32, bfloat16 or uint8
codes) or, two codes to a byte, uint8 (rows, bytes of a row), and NAME_scale float32 (rows, ceil(row length / block))
where the codec has scales.)")
      .def("is_paged", &PyOptimizer::is_paged, "param"_a,
           "Whether the state streams from a disk or is on a device: `state` shows its step count only.")
      .def("read_state", &PyOptimizer::read_state, "param"_a,
           "Copies of the tensors that `state` shows, wherever the state lives.")
      .def("write_state", &PyOptimizer::write_state, "param"_a, "tensors"_a,
           "Takes back what `read_state` gave, but for the step count: contiguous tensors of those types and shapes.")
      .def("save", PyOptimizer::core_alone(&lowtide::Optimizer::save), "path"_a, "metadata"_a)
      .def("load", PyOptimizer::core_alone(&lowtide::Optimizer::load), "path"_a)
      .def("export_state", &PyOptimizer::export_state, "param"_a, "k"_a,
           "State k decoded to float32, with the parameter's sizes (a copy).")
      .def("import_state", &PyOptimizer::import_state, "param"_a, "k"_a, "value"_a,
           "Encodes a contiguous float32 CPU tensor of the parameter's sizes into state k.")
      .def("step_count", PyOptimizer::core(&lowtide::Optimizer::steps), "param"_a)
      .def(
          "mu_product", [](const PyOptimizer& self, int64_t param) { return self.mu_product(param); }, "param"_a,
          "NAdam's product of mu; -1 of another rule.")
      .def(
          "set_mu_product",
          [](PyOptimizer& self, int64_t param, double product) { self.set_mu_product(param, product); }, "param"_a,
          "product"_a)
      .def("set_step_count", PyOptimizer::core(&lowtide::Optimizer::set_steps), "param"_a, "step"_a)
      .def("offload", PyOptimizer::core_alone(&lowtide::Optimizer::offload))
      .def("onload", PyOptimizer::core_alone(&lowtide::Optimizer::onload))
      .def("report", &PyOptimizer::report)
      .def("cpu_target", PyOptimizer::core(&lowtide::Optimizer::cpu_target));
  m.def(
      "save_together",
      [](const std::vector<PyOptimizer*>& all, const std::vector<int>& owner, const std::string& path,
         const std::string& metadata) {
        PyOptimizer::together(all, [&](const auto& cores) { lowtide::save_together(cores, owner, path, metadata); });
      },
      "optimizers"_a, "owner"_a, "path"_a, "metadata"_a,
      R"(One file for optimizers with the same groups and numbers of parameters. owner: of each parameter, the place in
`optimizers` of the one that has it; it is a tensor without elements in the others.)");
  m.def(
      "load_together",
      [](const std::vector<PyOptimizer*>& all, const std::vector<int>& owner, const std::string& path) {
        return PyOptimizer::together(all,
                                     [&](const auto& cores) { return lowtide::load_together(cores, owner, path); });
      },
      "optimizers"_a, "owner"_a, "path"_a, "Reads what `save_together`, or `Optimizer.save`, wrote.");
}
