// The torch tensors behind an optimizer's parameters, and one step's walk over their gradients.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lowtide/optimizer.h"
#include "tensor_reader.h"

namespace lowtide::python {

class ParamBinding {
 public:
  // device: of parameters and gradients, as for TensorReader.
  ParamBinding(Optimizer& optimizer, std::string device) : optimizer_(optimizer), reader_(std::move(device)) {}

  // Registers a dense strided tensor of a supported type on the device. Keeps a reference to it. With `whole`, the
  // tensor is a shard: a plain one, or a DTensor, whose local tensor this process steps, and whose gradients are
  // DTensors of the same mesh and placements.
  int64_t add(int group, const nb::object& tensor, bool with_state, const std::optional<WholeParam>& whole);

  // Reads every parameter's `.grad` and follows parameters whose memory moved. Takes one attribute and two reads per
  // parameter, which dominate a step of many small ones. The result is valid until release(), which drops the
  // gradients. only: the numbers of the parameters to read.
  const std::vector<Gradient>& collect(const std::optional<std::vector<int64_t>>& only = {});
  void release() { held_.clear(); }
  // Follows moved memory of the parameters for which follows(i) is true, even without a gradient.
  template <class Follows>
  void follow_where(Follows&& follows) {
    for (size_t i = 0; i < params_.size(); ++i) {
      if (!follows(i)) continue;
      const nanobind::object here = entries_[i].distributed ? local_tensor(params_[i]) : params_[i];
      follow_moved(i, here);
    }
  }

  // Tells autograd which parameters were changed in place, so that it refuses a backward pass that needs their old
  // values. moved(i): true if parameter i was. One call for all is cheaper than one each. The list is kept, because it
  // rarely differs from the last step's.
  template <class Moved>
  void note_changed(Moved&& moved) {
    size_t count = 0;
    for (size_t i = 0; i < params_.size(); ++i) {
      if (!moved(i)) continue;
      if (count == nb::len(changed_) || !changed_[count].is(params_[i])) {
        cut_changed(count);
        changed_.append(params_[i]);
      }
      ++count;
    }
    if (count != nb::len(changed_)) cut_changed(count);
    raise_versions();
  }

  std::vector<int64_t> sizes(int64_t param) const;
  // Shows the garbage collector the objects to which this refers.
  template <class Visit>
  int visit(Visit&& visit) const {
    for (const nb::object& param : params_)
      if (const int stop = visit(param.ptr())) return stop;
    return visit(changed_.ptr());
  }
  void clear() { params_.clear(), cut_changed(0); }

  nb::object empty_like(int64_t param) const;  // a new contiguous float32 CPU tensor of the parameter's sizes
  // New CPU tensors for one state as it is stored: codes of the parameter's sizes, and scales (None without blocks).
  std::pair<nb::object, nb::object> empty_state(int64_t param, const lowtide::StateView& view) const;
  // The torch name of the element type of a tensor of codes: residuals of weights are integers.
  static const char* code_type(const lowtide::StateView& view);
  // The sizes of a tensor of codes: the parameter's, or [rows, bytes] where a byte holds more than one.
  static std::vector<int64_t> code_sizes(const std::vector<int64_t>& sizes, const lowtide::StateView& view);
  static void* address(nb::handle tensor);              // nullptr for None
  float* float_data(int64_t param, nb::handle tensor);  // data of such a tensor, checked

 private:
  // A parameter at the last step. Entries are small and contiguous, because a step of many small tensors waits for
  // memory.
  struct Entry {
    void* data = nullptr;
    size_t dims = 0;  // place in dims_
    int ndim = 0;
    DType dtype = DType::kF32;
    bool distributed = false, contiguous = false;
    std::vector<int64_t> grad_strides;
  };

  void cut_changed(size_t count);  // keeps the first `count`
  void raise_versions();
  nb::object local_gradient(size_t i, const nb::object& grad) const;
  void follow(size_t i, nb::handle tensor, const TensorInfo& now);
  void follow_moved(size_t i, nb::handle tensor);  // the parameter's local tensor

  Optimizer& optimizer_;
  TensorReader reader_, host_reader_;
  std::vector<nb::object> params_;
  nb::list changed_;  // parameters whose versions the last step raised
  nb::object increment_version_ = nb::module_::import_("torch.autograd.graph").attr("increment_version");
  bool versions_at_once_ = true;  // increment_version_ takes a list of tensors
  std::vector<Entry> entries_;
  std::vector<int64_t> dims_;  // for each parameter its sizes, then its strides
  std::vector<Gradient> grads_;
  std::vector<nb::object> held_;  // the gradients of the step under way: other threads may drop theirs meanwhile
};

}  // namespace lowtide::python
