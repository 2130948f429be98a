#include "bindings.h"

#include <exception>

#include "lowtide/error.h"
#include "lowtide/sign_collective.h"
#include "memory/write_failure.h"

namespace nb = nanobind;

namespace lowtide::python {

namespace {

// Sets type(*args) as the current exception, with an attribute. `arguments` is stolen, and may be NULL after a failure.
void set_error(PyObject* type, PyObject* arguments, const char* attribute, const nb::object& value) {
  const nb::object args = nb::steal(arguments);
  if (!args.is_valid()) return;
  const nb::object error = nb::steal(PyObject_CallObject(type, args.ptr()));
  if (error.is_valid() && PyObject_SetAttrString(error.ptr(), attribute, value.ptr()) == 0)
    PyErr_SetObject(type, error.ptr());
}

// The attribute `cause` of what a collective raises.
const char* cause_name(CollectiveError::Cause cause) {
  switch (cause) {
    case CollectiveError::Cause::kDisagreement:
      return "disagreement";
    case CollectiveError::Cause::kDigest:
      return "digest";
    case CollectiveError::Cause::kDamage:
      return "damage";
    case CollectiveError::Cause::kRankFailed:
      return "rank failed";
  }
  return "";
}

}  // namespace

void bind_errors(nb::module_& m) {
  // The exception type lives as long as the process, as the module does.
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
          set_error(e.kind() == ErrorKind::kInvalidArgument ? PyExc_ValueError : PyExc_ConnectionError,
                    Py_BuildValue("(s)", e.what()), "cause", nb::str(cause_name(e.cause())));
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
            case ErrorKind::kIo:
              set_error(PyExc_OSError, Py_BuildValue("(is)", e.os_error(), e.what()), "complete",
                        nb::bool_(dynamic_cast<const KeptInMemory*>(&e) != nullptr));
              break;
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
