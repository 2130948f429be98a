// Remembers the gradients whose norm was measured, to tell whether a step still finds them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "arguments.h"
#include "tensor_reader.h"

namespace lowtide::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

nb::object tensor_of(nb::handle weak) { return nb::steal(PyObject_CallNoArgs(weak.ptr())); }

// Holds weak references to gradients, which keep none of them alive, and torch's counts of their changes. The
// constructor and among() each walk over the parameters once, with the GIL.
class MeasuredGradients {
 public:
  explicit MeasuredGradients(const nb::list& params) {  // parameters without a gradient are skipped
    seen_.reserve(nb::len(params));
    for (const nb::handle param : params) {
      const nb::object grad = reader_.gradient(param);
      if (grad.is_none()) continue;
      nb::object weak = nb::steal(PyWeakref_NewRef(grad.ptr(), nullptr));
      if (!weak.is_valid()) throw nb::python_error();
      seen_.push_back({std::move(weak), version_of(grad)});
    }
  }

  std::string among(const nb::list& params) const {
    size_t count = 0;
    bool same = true, changed = false;
    for (const nb::handle param : params) {
      const nb::object grad = reader_.gradient(param);
      if (grad.is_none()) continue;
      same = count < seen_.size() && tensor_of(seen_[count].grad).is(grad);
      if (!same) break;
      changed |= version_of(grad) != seen_[count++].version;
    }
    if (same && count == seen_.size()) return changed ? "changed" : "same";
    return any_among(params) ? "mixed" : "replaced";
  }

 private:
  struct Seen {
    nb::object grad;  // a weak reference
    int64_t version;
  };

  // The number of changes that torch counted; 0 for an inference-mode tensor, whose changes torch does not count.
  int64_t version_of(nb::handle grad) const {
    const bool distributed = !reader_.is_exact(grad) && nb::hasattr(grad, "_local_tensor");
    const nb::object local = distributed ? local_tensor(grad) : nb::borrow(grad);
    const nb::object version = reader_.version(local);
    return version.is_none() ? 0 : nb::cast<int64_t>(version);
  }

  bool any_among(const nb::list& params) const {
    std::unordered_set<PyObject*> here;
    std::vector<nb::object> held;  // an address means this tensor while it lives
    for (const nb::handle param : params) {
      held.push_back(reader_.gradient(param));
      if (!held.back().is_none()) here.insert(held.back().ptr());
    }
    for (const Seen& seen : seen_)
      if (here.count(tensor_of(seen.grad).ptr())) return true;
    return false;
  }

  TensorReader reader_;
  std::vector<Seen> seen_;
};

}  // namespace

void bind_measured(nb::module_& m) {
  nb::class_<MeasuredGradients>(m, "MeasuredGradients",
                                "The gradients of these parameters as they are now. Keeps none of them alive.")
      .def(nb::init<const nb::list&>(), "params"_a, nb::sig("def __init__(self, params: list[Any]) -> None"))
      .def(
          "among", &MeasuredGradients::among, "params"_a, nb::sig("def among(self, params: list[Any]) -> str"),
          R"("same": these parameters have those gradients, unchanged in place as far as torch's versions tell; "changed":
those tensors, changed; "replaced": none of them; "mixed": some of them.)");
}

}  // namespace lowtide::python
