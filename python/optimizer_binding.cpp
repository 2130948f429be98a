// lowtide._core.Optimizer, and calls on several of them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "arguments.h"
#include "backend/gradient_reader.h"
#include "optim/joint_checkpoint.h"
#include "py_optimizer.h"

namespace lowtide::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

// Parameters refer to the optimizer (hooks, closures), and it refers to them: shows this cycle to the garbage
// collector.
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

void bind_optimizer(nb::module_& m) {
  nb::class_<StateMemory>(m, "StateMemory");
  nb::class_<QueuedClip>(m, "QueuedClip", "A norm of gradients, and what clips them, which may still be on their way.")
      .def(
          "wait",
          [](QueuedClip& clip) {
            const kernels::Clip found = clip.wait();
            return std::tuple(found.norm, found.factor, found.clipped);
          },
          kReleased, "As `clip_to`.");
  nb::class_<SaveHandle>(m, "SaveHandle", "A save that runs beside steps.")
      .def("done", &SaveHandle::done)
      .def("wait", &SaveHandle::wait, "seconds"_a, kReleased,
           "Whether it was done within so many seconds (below 0: for good). Raises what has made it fail.")
      .def("copied_bytes", &SaveHandle::copied_bytes);
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
      .def(
          "add_group", &PyOptimizer::add_group, "hyper"_a, "options"_a, "memory"_a = nb::none(), "budget_of"_a = -1,
          "rule"_a = "",
          R"(options: of `group_options`, those that are not the defaults. budget_of: the group whose budget it shares; -1:
the optimizer's. rule: another than the optimizer's.)")
      .def("set_rounding", PyOptimizer::core(&Optimizer::set_rounding), "group"_a, "rounding"_a)
      .def("set_seed", PyOptimizer::core(&Optimizer::set_seed), "seed"_a)
      .def("set_hyper", &PyOptimizer::set_hyper, "group"_a, "hyper"_a)
      .def("set_threads", PyOptimizer::core(&Optimizer::set_threads), "threads"_a)
      .def(
          "add_param", &PyOptimizer::add_param, "group"_a, "param"_a, "with_state"_a = true, "whole"_a = nb::none(),
          R"(Registers a strided tensor of float32, bfloat16 or float16 on the device; returns its number (0, 1, ... over all
groups). whole: of a shard, see shard_of in lowtide.devices.flattened.)")
      .def("place_states", PyOptimizer::core_alone(&Optimizer::place_states))
      .def("check", &PyOptimizer::check, "grad_scale"_a = 1.0, "stream"_a = 0, "assume_finite"_a = false,
           "free_bytes"_a = -1, "only"_a = nb::none(),
           "The result that `step` would return, without stepping. Raises what `step` would refuse.")
      .def(
          "step", &PyOptimizer::step, "grad_scale"_a = 1.0, "assume_finite"_a = false, "stream"_a = 0,
          "free_bytes"_a = -1, "only"_a = nb::none(), "directions"_a = nb::none(), "clip"_a = nb::none(),
          "loss_scale"_a = 0, "found_inf"_a = 0, "updates"_a = nb::none(), "sums"_a = nb::none(),
          R"(One step over every parameter whose `.grad` is not None. Returns -1 when applied or not known yet, else (skipped)
the number of the first parameter with a non-finite gradient, or OVERFLOW: of sums over all parameters. Releases the GIL
while computing.

free_bytes: see lowtide::StepOptions. only: parameters with other numbers count as without a gradient. directions: of
each parameter an address of contiguous float32, or 0: it gets what would be subtracted, without learning rate and
weight decay, and nothing else changes (StepOptions::preview). updates: (number, address of contiguous bfloat16, scale)
of parameters that these move in place of their rules (StepOptions::updates). loss_scale, found_inf: addresses, as
lowtide::LossScaling has them. sums: of all optimizers and processes that step together, from term_sums; None: its own.)")
      .def("gradient_sums", &PyOptimizer::gradient_sums, "only"_a = nb::none(), "stream"_a = 0,
           "The exact sum of the squares of the gradients, as 32-bit numbers that may be added to another optimizer's, "
           "and the largest magnitude as float bits. Waits for it.")
      .def("term_sums", &PyOptimizer::term_sums, "grad_scale"_a = 1.0, "only"_a = nb::none(), "stream"_a = 0,
           "The sums that a step of Prodigy needs, as 32-bit numbers that may be added to another optimizer's, and "
           "whether they are finite. Waits for them. Changes nothing but that states may be allocated.")
      .def("queue_clip", &PyOptimizer::queue_clip, "max_norm"_a, "norm_type"_a, "grad_scale"_a, "norm"_a, "stream"_a,
           "loss_scale"_a = 0, "The clip for `step`; CUDA queues it. Writes the norm as float32 to the address `norm`.")
      .def("prepare_replay", &PyOptimizer::prepare_replay, "grad_scale"_a = 1.0, "stream"_a = 0)
      .def("prefetch", &PyOptimizer::prefetch, "bytes"_a, "stream"_a = 0)
      .def("demote", PyOptimizer::core_alone(&Optimizer::demote), "bytes"_a)
      .def("synchronize", PyOptimizer::core_alone(&Optimizer::synchronize))
      .def("sign_count", PyOptimizer::core(&Optimizer::sign_count),
           "Signs of all parameters, each padded to a multiple of SIGN_ALIGNMENT.")
      .def(
          "ballots", &PyOptimizer::ballots, "bits"_a, "presence"_a, "zero_is_plus"_a, "grad_scale"_a, "assume_finite"_a,
          "stream"_a,
          R"(As `step`, but no parameter moves: the addresses get the signs of what would be subtracted, and the blocks that
are not all zeros. Both are written whole.)")
      .def("apply_signs", &PyOptimizer::apply_signs, "bits"_a, "presence"_a, "zeros"_a, "stream"_a,
           "Moves all parameters by signs (zeros: 0 for none), with lr and weight_decay of their groups. Counts no "
           "step.")
      .def("has_state", PyOptimizer::core(&Optimizer::has_state), "param"_a)
      .def("stepped_count", &PyOptimizer::stepped_count,
           "Parameters that have taken a step. Unlike `report` it waits for nothing.")
      .def("skipped_steps", PyOptimizer::core(&Optimizer::skipped_steps),
           "Steps that were skipped, as far as is known without waiting.")
      .def("allocate_state", PyOptimizer::core(&Optimizer::allocate_state), "param"_a)
      .def(
          "states_of", &PyOptimizer::states_of, "param"_a,
          R"(Name, and whether it takes both signs, of every state that the parameter has or can be given, in the order of
`state`, `export_state` and `import_state`.)")
      .def("state_codec", PyOptimizer::core(&Optimizer::state_codec), "param"_a,
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
      .def("save", PyOptimizer::core_alone(&Optimizer::save), "path"_a, "metadata"_a)
      .def(
          "save_async",
          [](PyOptimizer& self, const std::string& path, const std::string& metadata, int64_t copy_bytes) {
            return PyOptimizer::note_save({&self}, self.save_async(path, metadata, copy_bytes));
          },
          "path"_a, "metadata"_a, "copy_bytes"_a)
      .def("load", PyOptimizer::core_alone(&Optimizer::load), "path"_a)
      .def("export_state", &PyOptimizer::export_state, "param"_a, "k"_a,
           "State k decoded to float32, with the parameter's sizes (a copy).")
      .def("import_state", &PyOptimizer::import_state, "param"_a, "k"_a, "value"_a,
           "Encodes a contiguous float32 CPU tensor of the parameter's sizes into state k.")
      .def("step_count", PyOptimizer::core(&Optimizer::steps), "param"_a)
      .def("carried", &PyOptimizer::carried, "param"_a, "Numbers that the rule carries beside states, by name.")
      .def("set_carried", &PyOptimizer::set_carried, "param"_a, "numbers"_a, "After `load` and `set_step_count`.")
      .def("set_evaluating", &PyOptimizer::set_evaluating, "evaluating"_a, "stream"_a = 0,
           "Moves all parameters to the weights to evaluate, or back to those to train. Waits for it.")
      .def("evaluating", PyOptimizer::core(&Optimizer::evaluating), "param"_a)
      .def("evaluating_beta1", PyOptimizer::core(&Optimizer::evaluating_beta1), "param"_a,
           "By which the parameter came to the weights to evaluate; 0: it has those to train.")
      .def("mark_evaluating", PyOptimizer::core(&Optimizer::mark_evaluating), "param"_a, "evaluating"_a, "beta1"_a = 0)
      .def("set_step_count", PyOptimizer::core(&Optimizer::set_steps), "param"_a, "step"_a)
      .def("offload", PyOptimizer::core_alone(&Optimizer::offload))
      .def("onload", PyOptimizer::core_alone(&Optimizer::onload))
      .def("report", &PyOptimizer::report)
      .def("cpu_target", PyOptimizer::core(&Optimizer::cpu_target));
  m.def(
      "save_together",
      [](const std::vector<PyOptimizer*>& all, const std::vector<int>& owner, const std::string& path,
         const std::string& metadata) {
        PyOptimizer::together(all, [&](const auto& cores) { save_together(cores, owner, path, metadata); });
      },
      "optimizers"_a, "owner"_a, "path"_a, "metadata"_a,
      R"(One file for optimizers with the same groups and numbers of parameters. owner: of each parameter, the place in
`optimizers` of the one that has it; it is a tensor without elements in the others.)");
  m.def(
      "save_together_async",
      [](const std::vector<PyOptimizer*>& all, const std::vector<int>& owner, const std::string& path,
         const std::string& metadata, int64_t copy_bytes) {
        return PyOptimizer::note_save(all, PyOptimizer::together(all, [&](const auto& cores) {
                                        return save_together_async(cores, owner, path, metadata, copy_bytes);
                                      }));
      },
      "optimizers"_a, "owner"_a, "path"_a, "metadata"_a, "copy_bytes"_a);
  m.def("finish_saves", &finish_saves, kReleased, "Waits for all saves of this process that run beside steps.");
  m.def(
      "load_together",
      [](const std::vector<PyOptimizer*>& all, const std::vector<int>& owner, const std::string& path) {
        return PyOptimizer::together(all, [&](const auto& cores) { return load_together(cores, owner, path); });
      },
      "optimizers"_a, "owner"_a, "path"_a, "Reads what `save_together`, or `Optimizer.save`, wrote.");
}

}  // namespace lowtide::python
