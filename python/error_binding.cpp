#include "error_binding.h"

#include <exception>

#include "lowtide/error.h"
#include "lowtide/sign_collective.h"
#include "memory/write_failure.h"

namespace nb = nanobind;

namespace lowtide::python {

void bind_errors(nb::module_& m) {
  // For the life of the process, as the module.
  PyObject* const lost = PyErr_NewExceptionWithDoc(
      "lowtide.DeviceLostError",
      "The device can do nothing more in this process. State in host memory can still be saved.", PyExc_RuntimeError,
      nullptr);
  if (!lost) throw nb::python_error();
  m.attr("DeviceLostError") = nb::borrow(lost);
  nb::register_exception_translator(
      [](const std::exception_ptr& p, void* device_lost) {
        try {
          std::rethrow_exception(p);
        } catch (const CollectiveError& e) {
          PyErr_SetString(e.kind() == ErrorKind::kInvalidArgument ? PyExc_ValueError : PyExc_ConnectionError, e.what());
        } catch (const TransportError& e) {
          PyErr_SetString(PyExc_ConnectionError, e.what());
        } catch (const Error& e) {
          switch (e.kind()) {
            case ErrorKind::kInvalidArgument:
              PyErr_SetString(PyExc_ValueError, e.what());
              break;
            case ErrorKind::kOutOfMemory:
              PyErr_SetString(PyExc_MemoryError, e.what());
              break;
            case ErrorKind::kUnsupported:
              PyErr_SetString(PyExc_NotImplementedError, e.what());
              break;
            case ErrorKind::kIo: {
              const nb::object error = nb::steal(PyObject_CallFunction(PyExc_OSError, "is", e.os_error(), e.what()));
              if (!error.is_valid()) break;
              const bool complete = dynamic_cast<const KeptInMemory*>(&e) != nullptr;
              if (PyObject_SetAttrString(error.ptr(), "complete", complete ? Py_True : Py_False) == 0)
                PyErr_SetObject(PyExc_OSError, error.ptr());
              break;
            }
            case ErrorKind::kDeviceLost:
              PyErr_SetString(static_cast<PyObject*>(device_lost), e.what());
              break;
            case ErrorKind::kInternal:
              PyErr_SetString(PyExc_RuntimeError, e.what());
              break;
          }
        }
      },
      lost);
}

}  // namespace lowtide::python
