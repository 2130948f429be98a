#include "arguments.h"

#include <exception>

#include "lowtide/error.h"
#include "lowtide/sign_collective.h"
#include "memory/store.h"

namespace nb = nanobind;

namespace lowtide::python {

namespace {

// Sets an attribute of `error` and makes it the current Python exception. If that fails, throws the failure, which
// becomes the current exception instead.
void set_error(const nb::object& error, const char* attribute, const auto& value) {
  nb::setattr(error, attribute, nb::cast(value));
  PyErr_SetObject(error.type().ptr(), error.ptr());
}

// The attribute `cause` of a collective's exception.
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

// The exception for each kind of error except kIo.
PyObject* type_of(ErrorKind kind, PyObject* device_lost) {
  if (kind == ErrorKind::kInvalidArgument) return PyExc_ValueError;
  if (kind == ErrorKind::kOutOfMemory) return PyExc_MemoryError;
  if (kind == ErrorKind::kUnsupported) return PyExc_NotImplementedError;
  return kind == ErrorKind::kDeviceLost ? device_lost : PyExc_RuntimeError;
}

}  // namespace

void bind_errors(nb::module_& m) {
  // The exception type lives as long as the process, as the module does.
  PyObject* const lost = PyErr_NewExceptionWithDoc(
      "lowtide.DeviceLostError", "The device is unusable in this process. State in host memory can still be saved.",
      PyExc_RuntimeError, nullptr);
  if (!lost) throw nb::python_error();
  m.attr("DeviceLostError") = nb::borrow(lost);
  nb::register_exception_translator(
      [](const std::exception_ptr& p, void* device_lost) {
        try {
          std::rethrow_exception(p);
        } catch (const CollectiveError& e) {
          const nb::handle type = e.kind() == ErrorKind::kInvalidArgument ? PyExc_ValueError : PyExc_ConnectionError;
          set_error(type(e.what()), "cause", cause_name(e.cause()));
        } catch (const TransportError& e) {
          PyErr_SetString(PyExc_ConnectionError, e.what());
        } catch (const Error& e) {
          if (e.kind() == ErrorKind::kIo)
            set_error(nb::handle(PyExc_OSError)(e.os_error(), e.what()), "complete",
                      dynamic_cast<const KeptInMemory*>(&e) != nullptr);
          else
            PyErr_SetString(type_of(e.kind(), static_cast<PyObject*>(device_lost)), e.what());
        }
      },
      lost);
}

}  // namespace lowtide::python
