#include "bindings.h"

#include <exception>

#include "lowtide/error.h"
#include "lowtide/sign_collective.h"
#include "memory/store.h"

namespace nb = nanobind;

namespace lowtide::python {

namespace {

// Sets an exception as the current one, with an attribute. A failure throws, and becomes the current one instead.
void set_error(const nb::object& error, const char* attribute, const auto& value) {
  nb::setattr(error, attribute, nb::cast(value));
  PyErr_SetObject(error.type().ptr(), error.ptr());
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
          const nb::handle type = e.kind() == ErrorKind::kInvalidArgument ? PyExc_ValueError : PyExc_ConnectionError;
          set_error(type(e.what()), "cause", cause_name(e.cause()));
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
              set_error(nb::handle(PyExc_OSError)(e.os_error(), e.what()), "complete",
                        dynamic_cast<const KeptInMemory*>(&e) != nullptr);
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
