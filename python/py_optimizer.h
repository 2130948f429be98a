// The Python object Optimizer: lowtide::Optimizer plus the torch tensors it steps. It needs no torch headers and no
// torch ABI: tensor_reader.h reads tensors, and states go out through DLPack.
//
// Threads: calls that can take long release the GIL. The optimizer refuses a second call meanwhile.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "arguments.h"
#include "lowtide/optimizer.h"
#include "optim/carried.h"
#include "optim/gradient_norm.h"
#include "param_binding.h"
#include "python_allocator.h"

namespace lowtide::python {

// The optimizer, and the source of its device memory.
struct Core {
  Core(OptimizerOptions options, const AllocatorFunctions& functions)
      : allocator(functions), optimizer([&] {
          options.allocator = allocator.callbacks();
          return options;
        }()) {}
  // Without this the optimizer would wait for a running save with the GIL, and block all other threads.
  ~Core() {
    if (!save) return;
    const nanobind::gil_scoped_release released;
    try {
      save->wait();
    } catch (...) {  // the save's handle reports it
    }
  }
  PythonAllocator allocator;
  Optimizer optimizer;
  std::optional<SaveHandle> save;  // the last save
};

// Tensors of state keep this alive: the memory without the parameters. If they kept the whole optimizer, a parameter
// that refers to its optimizer would close a cycle through memory that the garbage collector cannot see into.
struct StateMemory {
  std::shared_ptr<Core> core;
};

// Carried numbers (optim/carried.h) by their names.
NumberDict number_dict(const std::vector<const char*>& names, const Carried& numbers);

using GivenUpdate = std::tuple<int64_t, Address, double>;  // number, contiguous bfloat16, scale

using GivenSums = std::pair<std::vector<int64_t>, bool>;  // TermSums::limbs(), are_finite()

// The Python object: owns the optimizer and references to the tensors of its parameters. Refuses calls that change it
// while another thread is in a call (steps release the GIL).
class PyOptimizer {
 public:
  PyOptimizer(const std::string& rule, const std::string& nonfinite, int threads, const std::string& cpu_target,
              const GivenMemory& memory, const std::string& backend, Address stream, const std::string& device,
              const std::string& target, const AllocatorFunctions& allocator, uint64_t seed);

  int add_group(const HyperDict& hyper, const OptionDict& options, const GivenMemory& memory, int budget_of,
                const std::string& rule);
  void set_hyper(int group, const HyperDict& hyper);
  int64_t add_param(int group, const Tensor& param, bool with_state, const GivenWhole& whole);

  static constexpr int64_t kOverflow = -2;  // step(): skipped, as sums over all parameters are not finite
  int64_t step(double grad_scale, bool assume_finite, Address stream, int64_t free_bytes,
               const std::optional<std::vector<int64_t>>& only, const std::optional<std::vector<Address>>& directions,
               const std::shared_ptr<QueuedClip>& clip, Address loss_scale, Address found_inf,
               const std::optional<std::vector<GivenUpdate>>& updates, const std::optional<GivenSums>& sums);
  int64_t check(double grad_scale, Address stream, bool assume_finite, int64_t free_bytes,
                const std::optional<std::vector<int64_t>>& only);
  // The exact sum of the squares of the gradients as the limbs of an ExactSum, and the largest magnitude as float bits.
  std::pair<ExactSum::Limbs, int64_t> gradient_sums(const std::optional<std::vector<int64_t>>& only, Address stream);
  GivenSums term_sums(double grad_scale, const std::optional<std::vector<int64_t>>& only, Address stream);
  std::shared_ptr<QueuedClip> queue_clip(double max_norm, double norm_type, double grad_scale, Address norm,
                                         Address stream, Address loss_scale);
  void prepare_replay(double grad_scale, Address stream);
  int64_t prefetch(int64_t bytes, Address stream);
  int64_t ballots(Address bits, Address presence, bool zero_is_plus, double grad_scale, bool assume_finite,
                  Address stream);
  void apply_signs(Address bits, Address presence, Address zeros, Address stream);

  int64_t stepped_count() const;
  std::vector<std::pair<std::string, bool>> states_of(int64_t param) const;
  TensorDict state(int64_t param);
  bool is_paged(int64_t param) const;
  TensorDict read_state(int64_t param);
  void write_state(int64_t param, const TensorDict& tensors);
  Tensor export_state(int64_t param, int k);
  void import_state(int64_t param, int k, const Tensor& value);
  NumberDict carried(int64_t param) const;
  void set_carried(int64_t param, const NumberDict& numbers);
  void set_evaluating(bool evaluating, Address stream);

  Report report();

  ParamBinding& binding() { return binding_; }

  // Calls fn with all core optimizers, without the GIL. No other call may change one of them meanwhile.
  template <class Fn>
  static auto together(const std::vector<PyOptimizer*>& all, Fn&& fn) {
    std::deque<Busy> busy;
    std::vector<Optimizer*> cores;
    for (PyOptimizer* const each : all) {
      busy.emplace_back(*each);
      cores.push_back(&each->core_);
    }
    return released([&] { return fn(cores); });
  }

  // Calls fn without the GIL. No other call may change the optimizer meanwhile.
  template <class Fn>
  std::invoke_result_t<Fn> alone(Fn&& fn) {
    const Busy busy(*this);
    return released(fn);
  }

  // See Optimizer::save_async and save_together_async, and `together`.
  SaveHandle save_async(const std::string& path, const std::string& metadata, int64_t copy_bytes) {
    return together({this}, [&](const auto& cores) { return cores[0]->save_async(path, metadata, copy_bytes); });
  }
  // Makes each optimizer wait for the save, without the GIL, before it is destroyed.
  static SaveHandle note_save(const std::vector<PyOptimizer*>& all, SaveHandle save) {
    for (PyOptimizer* const each : all) each->shared_->save = save;
    return save;
  }

  // Methods of the core as functions to bind; core_alone calls them as alone() does.
  template <class R, class... A>
  static auto core(R (Optimizer::*method)(A...)) {
    return [method](PyOptimizer& self, A... args) { return (self.core_.*method)(args...); };
  }
  template <class R, class... A>
  static auto core(R (Optimizer::*method)(A...) const) {
    return [method](const PyOptimizer& self, A... args) { return (self.core_.*method)(args...); };
  }
  template <class R, class... A>
  static auto core_alone(R (Optimizer::*method)(A...)) {
    return [method](PyOptimizer& self, A... args) { return self.alone([&] { return (self.core_.*method)(args...); }); };
  }
  template <class R, class... A>
  static auto core_alone(R (Optimizer::*method)(A...) const) {
    return [method](PyOptimizer& self, A... args) { return self.alone([&] { return (self.core_.*method)(args...); }); };
  }

 private:
  // Marks the optimizer as in use for the length of a call; constructed and destroyed under the GIL. The destructor
  // releases the gradients that the call held.
  class Busy {
   public:
    explicit Busy(PyOptimizer& self) : self_(self) {
      if (self.busy_)
        throw nanobind::value_error("this optimizer is in use by another thread; wait for its call to return");
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
  static nanobind::object tensor(nanobind::handle owner, void* data, const std::vector<int64_t>& sizes,
                                 nanobind::dlpack::dtype type);

  std::string rule_;
  std::shared_ptr<Core> shared_;
  Optimizer& core_;
  ParamBinding binding_;
  bool busy_ = false;
};

}  // namespace lowtide::python
