// Reads what a torch tensor is (memory, type, shape, strides) without torch's headers or ABI: through the DLPack C
// exchange interface if torch has it (a C call), otherwise through the tensor's Python attributes.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lowtide/tensor.h"

namespace lowtide::python {

namespace nb = nanobind;

// A dense tensor of a supported type. shape and strides are torch's own memory (or the reader's): valid until the
// tensor changes or the next read, and only while the GIL is held.
struct TensorInfo {
  void* data;
  DType dtype;
  int ndim;
  const int64_t* shape;
  const int64_t* strides;  // elements

  bool is_contiguous() const;
  bool has_memory() const;  // or no elements
  TensorView view() const;  // a copy
};

// A tensor attribute that torch's class Tensor implements as a getter. If a tensor's type is exactly Tensor or
// Parameter, the getter is called without a look-up by name.
class TensorAttribute {
 public:
  explicit TensorAttribute(const char* name) : name_(PyUnicode_InternFromString(name)) {}
  void find(nb::handle tensor_class);
  nb::object of(nb::handle tensor, bool exact) const {
    PyObject* const value = get_ && exact
                                ? get_(getter_, tensor.ptr(), reinterpret_cast<PyObject*>(Py_TYPE(tensor.ptr())))
                                : PyObject_GetAttr(tensor.ptr(), name_);
    if (!value) throw nb::python_error();
    return nb::steal(value);
  }

 private:
  PyObject* name_;  // interned: look-up compares pointers. Never released: the interpreter may be gone by then
  PyObject* getter_ = nullptr;  // owned by Tensor, which lives as long as the process
  descrgetfunc get_ = nullptr;
};

class TensorReader {
 public:
  // device: the required device, as in str(tensor.device). "cpu" includes all its indices.
  explicit TensorReader(std::string device = "cpu");
  // False for a tensor that cannot be used: refuse() says why.
  bool read(nb::handle tensor, TensorInfo& info);
  // what: "a parameter", "the gradient of parameter 3".
  // Throws ValueError naming what was got and wanted: device, layout (sparse), dtype, memory.
  [[noreturn]] void refuse(nb::handle tensor, const std::string& what) const;

  nb::object gradient(nb::handle tensor) const { return grad_.of(tensor, is_exact(tensor)); }
  // The number of changes that torch counted; None for an inference-mode tensor, whose changes torch does not count.
  nb::object version(nb::handle tensor) const;

  // Prefetches what reading the tensor will need. The third or fourth word of its Python object is the address of
  // torch's tensor; if neither is, the prefetch is useless but harmless.
  static void fetch(nb::handle tensor) {
    const auto* const words = reinterpret_cast<const char* const*>(tensor.ptr());
    for (const char* const address : {words[2], words[3]})
      for (const int at : {0, 64, 128}) __builtin_prefetch(address + at);
  }

  // True if the type is exactly Tensor or Parameter; such tensors are read without their Python attributes.
  bool is_exact(nb::handle tensor) const {
    PyObject* const type = reinterpret_cast<PyObject*>(Py_TYPE(tensor.ptr()));
    return type == exchange_types_[0] || type == exchange_types_[1];
  }

 private:
  using FromPyObject = int (*)(void* object, nb::dlpack::dltensor* out);

  bool read_attributes(nb::handle tensor, TensorInfo& info);
  bool is_here(nb::handle tensor) const;

  std::string device_;
  // The device in DLPack's numbering, which differs from torch's: taken from the first tensor on the device.
  nb::dlpack::device numbers_ = {0, 0};
  FromPyObject exchange_ = nullptr;
  TensorAttribute grad_{"grad"}, version_{"_version"};
  PyObject* exchange_types_[2] = {};  // the exact types that the exchange function accepts: Tensor, Parameter
  std::vector<int64_t> shape_, strides_;
};

// The local tensor of a DTensor itself: neither a view nor a copy. Waits for a collective that fills it.
nb::object local_tensor(nb::handle dtensor);

// Looks up an element type by its name, with or without "torch." in front. Throws ValueError for any other name.
DType dtype_named(const std::string& name);

[[noreturn]] void refuse_value(const std::string& message);  // ValueError
std::string text_of(nb::handle value);                       // str(value)

}  // namespace lowtide::python
