#include "param_binding.h"

#include <string>

namespace lowtide::python {
namespace {

// Interned names: attribute look-up by them compares pointers.
struct Names {
  nb::object grad = intern("grad"), data_ptr = intern("data_ptr"), dtype = intern("dtype"), numel = intern("numel"),
             is_contiguous = intern("is_contiguous"), stride = intern("stride"), layout = intern("layout"),
             device = intern("device"), shape = intern("shape"), type = intern("type");

  static nb::object intern(const char* s) { return nb::steal(PyUnicode_InternFromString(s)); }
};

// torch's own objects, looked up once. Never destroyed: the interpreter may be gone by then.
struct Torch {
  nb::object module = nb::module_::import_("torch");
  nb::object tensor = module.attr("Tensor");
  nb::object dtypes[3] = {module.attr("float32"), module.attr("bfloat16"), module.attr("float16")};  // as DType
  nb::object strided = module.attr("strided");
  Names names;
};
const Torch& torch() {
  static const Torch* const instance = new Torch;
  return *instance;
}

std::string text(nb::handle value) { return nb::cast<std::string>(nb::str(value)); }

[[noreturn]] void refuse(const std::string& message) { throw nb::value_error(message.c_str()); }

nb::object get(nb::handle object, const nb::object& name) {
  PyObject* value = PyObject_GetAttr(object.ptr(), name.ptr());
  if (!value) throw nb::python_error();
  return nb::steal(value);
}

nb::object call(nb::handle object, const nb::object& method) {
  PyObject* args[] = {object.ptr()};
  PyObject* value = PyObject_VectorcallMethod(method.ptr(), args, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  if (!value) throw nb::python_error();
  return nb::steal(value);
}

void* pointer(nb::handle tensor) {
  const nb::object value = call(tensor, torch().names.data_ptr);
  void* p = PyLong_AsVoidPtr(value.ptr());
  if (!p && PyErr_Occurred()) throw nb::python_error();
  return p;
}

// nullopt-like: -1 if it is none of the supported types.
int dtype_index(PyObject* dtype) {
  for (int i = 0; i < 3; ++i)
    if (torch().dtypes[i].ptr() == dtype) return i;
  return -1;
}

std::vector<int64_t> integers(const nb::object& tuple) {
  std::vector<int64_t> out;
  for (const nb::handle h : tuple) out.push_back(nb::cast<int64_t>(h));
  return out;
}

TensorView view_of(nb::handle tensor) {
  const Names& names = torch().names;
  if (!nb::isinstance(tensor, torch().tensor))
    throw nb::type_error(("got a parameter of type " + text(tensor.type()) + ", wanted torch.Tensor").c_str());
  const std::string device = text(get(get(tensor, names.device), names.type));
  if (device != "cpu")
    refuse("got a parameter on device '" + device + "', wanted 'cpu': this build has no backend for others");
  const nb::object layout = get(tensor, names.layout);
  if (!layout.is(torch().strided)) refuse("got a parameter of layout " + text(layout) + ", wanted torch.strided");
  const nb::object dtype = get(tensor, names.dtype);
  const int index = dtype_index(dtype.ptr());
  if (index < 0)
    refuse("got a parameter of dtype " + text(dtype) + ", wanted torch.float32, torch.bfloat16 or torch.float16");
  TensorView view;
  view.dtype = static_cast<DType>(index);
  view.data = pointer(tensor);
  view.sizes = integers(get(tensor, names.shape));
  view.strides = integers(call(tensor, names.stride));
  return view;
}

}  // namespace

int64_t ParamBinding::add(int group, const nb::object& tensor, bool with_state) {
  const TensorView view = view_of(tensor);
  const int64_t index = optimizer_.add_param(group, view, with_state);
  int64_t numel = 1;
  for (const int64_t size : view.sizes) numel *= size;
  params_.push_back(tensor);
  entries_.push_back({view.sizes, numel, view.data, get(tensor, torch().names.dtype).ptr(), {}});
  return index;
}

// The tensor's memory or type is not what it was: `param.data = ...`, `model.to(...)`.
void ParamBinding::follow(size_t i) {
  const TensorView view = view_of(params_[i]);
  Entry& entry = entries_[i];
  if (view.sizes != entry.sizes) {
    const nb::object was = nb::steal(PyList_New(0));
    for (const int64_t size : entry.sizes) nb::borrow<nb::list>(was).append(size);
    refuse("parameter " + std::to_string(i) + " changed its shape from " + text(was) + " to " +
           text(get(params_[i], torch().names.shape)) + "; build a new optimizer for it");
  }
  optimizer_.rebind(static_cast<int64_t>(i), view);
  entry.data = view.data;
  entry.dtype = get(params_[i], torch().names.dtype).ptr();
}

Gradient ParamBinding::gradient(size_t i, nb::handle grad) {
  const Names& names = torch().names;
  Entry& entry = entries_[i];
  Gradient out;
  const nb::object dtype = get(grad, names.dtype);
  const int index = dtype_index(dtype.ptr());
  const std::string which = "the gradient of parameter " + std::to_string(i);
  if (index < 0)
    refuse("got " + which + " as " + text(dtype) + ", wanted torch.float32, torch.bfloat16 or torch.float16");
  out.dtype = static_cast<DType>(index);
  const nb::object layout = get(grad, names.layout);
  if (!layout.is(torch().strided)) refuse("got " + which + " of layout " + text(layout) + ", wanted torch.strided (dense)");
  out.data = pointer(grad);
  const nb::object numel = call(grad, names.numel);
  if (PyLong_AsLongLong(numel.ptr()) != entry.numel) refuse(which + " has " + text(numel) + " elements, wanted " + std::to_string(entry.numel));
  if (call(grad, names.is_contiguous).ptr() != Py_True) {
    entry.grad_strides = integers(call(grad, names.stride));
    out.strides = entry.grad_strides.data();
  }
  return out;
}

const std::vector<Gradient>& ParamBinding::collect() {
  const Names& names = torch().names;
  grads_.assign(params_.size(), Gradient{});
  for (size_t i = 0; i < params_.size(); ++i) {
    const nb::handle param = params_[i];
    const nb::object grad = get(param, names.grad);
    if (grad.is_none()) continue;
    if (pointer(param) != entries_[i].data || get(param, names.dtype).ptr() != entries_[i].dtype) follow(i);
    grads_[i] = gradient(i, grad);
  }
  return grads_;
}

nb::object ParamBinding::empty_like(int64_t param) const {
  nb::list shape;
  for (const int64_t size : sizes(param)) shape.append(size);
  return torch().module.attr("empty")(shape, nb::arg("dtype") = torch().dtypes[0], nb::arg("device") = "cpu");
}

const void* ParamBinding::float_data(int64_t param, const nb::object& tensor) const {
  const TensorView view = view_of(tensor);
  if (view.dtype != DType::kF32 || view.sizes != sizes(param) || call(tensor, torch().names.is_contiguous).ptr() != Py_True)
    refuse("got a state that is not a contiguous float32 tensor of the parameter's shape");
  return view.data;
}

void* ParamBinding::data_pointer(nb::handle tensor) { return pointer(tensor); }

}  // namespace lowtide::python
