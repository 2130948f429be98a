#include "measured_gradients.h"

#include <unordered_set>

namespace lowtide::python {
namespace {

nb::object tensor_of(nb::handle weak) { return nb::steal(PyObject_CallNoArgs(weak.ptr())); }

}  // namespace

MeasuredGradients::MeasuredGradients(const nb::list& params) {
  seen_.reserve(nb::len(params));
  for (const nb::handle param : params) {
    const nb::object grad = reader_.gradient(param);
    if (grad.is_none()) continue;
    nb::object weak = nb::steal(PyWeakref_NewRef(grad.ptr(), nullptr));
    if (!weak.is_valid()) throw nb::python_error();
    seen_.push_back({std::move(weak), version_of(grad)});
  }
}

std::string MeasuredGradients::among(const nb::list& params) const {
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

// The number of changes that torch counted; 0 for an inference-mode tensor, whose changes torch does not count.
int64_t MeasuredGradients::version_of(nb::handle grad) const {
  const bool distributed = !reader_.is_exact(grad) && nb::hasattr(grad, "_local_tensor");
  const nb::object local = distributed ? local_tensor(grad) : nb::borrow(grad);
  const nb::object version = reader_.version(local);
  return version.is_none() ? 0 : nb::cast<int64_t>(version);
}

bool MeasuredGradients::any_among(const nb::list& params) const {
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

}  // namespace lowtide::python
