#include "param_binding.h"

#include <algorithm>
#include <string>

namespace lowtide::python {
namespace {

// A loop: a call of memcmp (std::equal) takes longer than these few comparisons.
bool same(const int64_t* a, int count, const int64_t* b, int n) {
  if (count != n) return false;
  for (int d = 0; d < n; ++d)
    if (a[d] != b[d]) return false;
  return true;
}

std::string shape_text(const int64_t* shape, int ndim) {
  std::string text = "[";
  for (int d = 0; d < ndim; ++d) text += (d ? ", " : "") + std::to_string(shape[d]);
  return text + "]";
}

// Views of the imaginary part of a conjugate: their memory holds the negative values.
void refuse_lazy_negative(nb::handle tensor, const std::string& what) {
  if (nb::cast<bool>(tensor.attr("is_neg")()))
    refuse_value("got " + what + " with a lazy negative bit, wanted tensor.resolve_neg()");
}

std::string gradient_name(size_t i) { return "the gradient of parameter " + std::to_string(i); }

}  // namespace

int64_t ParamBinding::add(int group, const nb::object& tensor, bool with_state,
                          const std::optional<WholeParam>& whole) {
  const bool distributed = whole && nb::hasattr(tensor, "_local_tensor");  // FSDP1's shards are plain tensors
  const nb::object local = distributed ? local_tensor(tensor) : tensor;
  TensorInfo info;
  if (!reader_.read(local, info)) reader_.refuse(local, "a parameter");
  refuse_lazy_negative(local, "a parameter");
  const int64_t index = optimizer_.add_param(group, info.view(), with_state, whole);
  params_.push_back(tensor);
  entries_.push_back({info.data, dims_.size(), info.ndim, info.dtype, distributed, info.is_contiguous(), {}});
  dims_.insert(dims_.end(), info.shape, info.shape + info.ndim);
  dims_.insert(dims_.end(), info.strides, info.strides + info.ndim);
  return index;
}

std::vector<int64_t> ParamBinding::sizes(int64_t param) const {
  const Entry& entry = entries_.at(static_cast<size_t>(param));
  const int64_t* const first = dims_.data() + entry.dims;
  return {first, first + entry.ndim};
}

// The gradient of a DTensor parameter. Comparing meshes takes long, but usually both are the same object.
nb::object ParamBinding::local_gradient(size_t i, const nb::object& grad) const {
  if (!nb::hasattr(grad, "_local_tensor"))
    refuse_value("got " + gradient_name(i) + " as a plain tensor, wanted a DTensor like the parameter");
  const nb::object& param = params_[i];
  const nb::object have = grad.attr("placements"), want = param.attr("placements");
  const nb::object grad_mesh = grad.attr("device_mesh"), mesh = param.attr("device_mesh");
  if (!have.equal(want) || (!grad_mesh.is(mesh) && !grad_mesh.equal(mesh)))
    refuse_value("got " + gradient_name(i) + " with placements " + text_of(have) + " on " + text_of(grad_mesh) +
                 ", wanted " + text_of(want) + " on " + text_of(mesh) + ": redistribute it");
  return local_tensor(grad);
}

// The tensor's memory, type or layout changed: `param.data = ...`, `model.to(...)`.
void ParamBinding::follow(size_t i, nb::handle tensor, const TensorInfo& now) {
  refuse_lazy_negative(tensor, "parameter " + std::to_string(i));
  Entry& entry = entries_[i];
  int64_t* const sizes = dims_.data() + entry.dims;
  if (!same(sizes, entry.ndim, now.shape, now.ndim))
    refuse_value("parameter " + std::to_string(i) + " changed its shape from " + shape_text(sizes, entry.ndim) +
                 " to " + shape_text(now.shape, now.ndim) + "; build a new optimizer for it");
  optimizer_.rebind(static_cast<int64_t>(i), now.view());
  std::copy(now.strides, now.strides + now.ndim, sizes + now.ndim);
  entry.data = now.data;
  entry.dtype = now.dtype;
  entry.contiguous = now.is_contiguous();
}

void ParamBinding::follow_moved(size_t i, nb::handle tensor) {
  TensorInfo now;
  if (!reader_.read(tensor, now)) reader_.refuse(tensor, "parameter " + std::to_string(i));
  const Entry& entry = entries_[i];
  const int64_t* const sizes = dims_.data() + entry.dims;
  if (now.data != entry.data || now.dtype != entry.dtype || !same(sizes, entry.ndim, now.shape, now.ndim) ||
      !same(sizes + entry.ndim, entry.ndim, now.strides, now.ndim))
    follow(i, tensor, now);
}

const std::vector<Gradient>& ParamBinding::collect(const std::optional<std::vector<int64_t>>& only) {
  static const std::byte no_elements{};  // the address of a gradient without elements, which differs from no gradient
  grads_.assign(params_.size(), Gradient{});
  held_.clear();
  const size_t count = only ? only->size() : params_.size();
  const auto number = [&](size_t n) { return only ? static_cast<size_t>((*only)[n]) : n; };
  for (size_t n = 0; n < count; ++n)
    if (number(n) >= params_.size())
      refuse_value("got parameter " + std::to_string((*only)[n]) + " of " + std::to_string(params_.size()));
  // After a backward pass none of this is in the processor's caches: prefetch what is read next.
  constexpr size_t kNear = 6, kFar = 12;
  held_.reserve(count);
  for (size_t n = 0; n < count; ++n) {
    if (n + kFar < count) __builtin_prefetch(params_[number(n + kFar)].ptr());
    if (n + kNear < count) TensorReader::fetch(params_[number(n + kNear)]);
    held_.push_back(reader_.gradient(params_[number(n)]));
  }
  for (size_t n = 0; n < count; ++n) {
    if (n + kNear < count && !held_[n + kNear].is_none()) TensorReader::fetch(held_[n + kNear]);
    const size_t i = number(n);
    const nb::object& param = params_[i];
    nb::object& grad = held_[n];
    if (grad.is_none()) continue;
    Entry& entry = entries_[i];
    if (entry.distributed) grad = local_gradient(i, grad);
    const nb::object local = entry.distributed ? local_tensor(param) : nb::object();
    const nb::handle here = entry.distributed ? local : param;
    follow_moved(i, here);
    const int64_t* const sizes = dims_.data() + entry.dims;
    const int64_t* const strides = sizes + entry.ndim;
    TensorInfo g;
    if (!reader_.read(grad, g)) reader_.refuse(grad, gradient_name(i));
    if (!same(sizes, entry.ndim, g.shape, g.ndim))
      refuse_value("got " + gradient_name(i) + " of shape " + shape_text(g.shape, g.ndim) + ", wanted " +
                   shape_text(sizes, entry.ndim));
    Gradient& out = grads_[i];
    out.data = g.data ? g.data : &no_elements;
    out.dtype = g.dtype;
    // The gradient of a contiguous parameter usually has the same strides. Query the lazy negative bit only for other
    // gradients, because that takes a Python call: such views skip every other element.
    if (!(entry.contiguous && same(strides, entry.ndim, g.strides, g.ndim))) {
      refuse_lazy_negative(grad, gradient_name(i));
      if (!g.is_contiguous()) {
        entry.grad_strides.assign(g.strides, g.strides + g.ndim);
        out.strides = entry.grad_strides.data();
      }
    }
  }
  return grads_;
}

void ParamBinding::cut_changed(size_t count) {
  const auto first = static_cast<Py_ssize_t>(count);
  if (PyList_SetSlice(changed_.ptr(), first, PY_SSIZE_T_MAX, nullptr) != 0) throw nb::python_error();
}

void ParamBinding::raise_versions() {
  if (nb::len(changed_) == 0) return;
  if (versions_at_once_) try {
      increment_version_(changed_);
      return;
    } catch (const nb::python_error& error) {  // torch 2.4 takes one tensor
      if (!error.matches(PyExc_TypeError) && !error.matches(PyExc_RuntimeError)) throw;
      versions_at_once_ = false;
    }
  for (const nb::handle tensor : changed_) increment_version_(tensor);
}

nb::object ParamBinding::empty_like(int64_t param) const {
  const nb::object torch = nb::module_::import_("torch");
  nb::list shape;
  for (const int64_t size : sizes(param)) shape.append(size);
  return torch.attr("empty")(shape, nb::arg("dtype") = torch.attr("float32"), nb::arg("device") = "cpu");
}

std::vector<int64_t> ParamBinding::code_sizes(const std::vector<int64_t>& sizes, const lowtide::StateView& view) {
  if (view.code_bits >= 8) return sizes;
  int64_t length = sizes.size() < 2 ? view.numel : 1;  // the length of a row, even for a shard without rows
  for (size_t d = 1; d < sizes.size(); ++d) length *= sizes[d];
  return {view.rows, length * view.code_bits / 8};
}

const char* ParamBinding::code_type(const lowtide::StateView& view) {
  if (view.name == std::string_view("residual")) return view.code_bits == 8 ? "int8" : "int16";
  return view.code_bits <= 8 ? "uint8" : view.code_bits == 16 ? "bfloat16" : "float32";
}

std::pair<nb::object, nb::object> ParamBinding::empty_state(int64_t param, const lowtide::StateView& view) const {
  const nb::object torch = nb::module_::import_("torch");
  nb::list shape;
  for (const int64_t size : code_sizes(sizes(param), view)) shape.append(size);
  nb::object codes =
      torch.attr("empty")(shape, nb::arg("dtype") = torch.attr(code_type(view)), nb::arg("device") = "cpu");
  nb::object scales = nb::none();
  if (view.scales_per_row)
    scales = torch.attr("empty")(nb::make_tuple(view.rows, view.scales_per_row),
                                 nb::arg("dtype") = torch.attr("float32"), nb::arg("device") = "cpu");
  return {codes, scales};
}

void* ParamBinding::address(nb::handle tensor) {
  if (tensor.is_none()) return nullptr;
  return reinterpret_cast<void*>(nb::cast<uintptr_t>(tensor.attr("data_ptr")()));
}

float* ParamBinding::float_data(int64_t param, nb::handle tensor) {
  TensorInfo info;
  if (!host_reader_.read(tensor, info)) host_reader_.refuse(tensor, "a state");
  const std::vector<int64_t> wanted = sizes(param);
  const int ndim = static_cast<int>(wanted.size());
  if (info.dtype != DType::kF32 || !same(wanted.data(), ndim, info.shape, info.ndim) || !info.is_contiguous())
    refuse_value("got a state that is " + std::string(dtype_name(info.dtype)) + " of shape " +
                 shape_text(info.shape, info.ndim) + ", wanted contiguous float32 of shape " +
                 shape_text(wanted.data(), ndim));
  return static_cast<float*>(info.data);
}

}  // namespace lowtide::python
