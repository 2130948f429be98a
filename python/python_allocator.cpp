#include "python_allocator.h"

#include <cstdint>
#include <optional>
#include <tuple>

namespace nb = nanobind;

namespace lowtide::python {
namespace {

// CPython clears its initialized flag when it begins to finalize, before it destroys modules and objects.
bool ending() { return !Py_IsInitialized(); }

// The result; nullopt after an exception. An interrupt is not lost: it is raised again when Python code next runs.
template <class... Arguments>
std::optional<uintptr_t> call(const nb::object& function, Arguments... arguments) noexcept {
  if (ending()) return std::nullopt;
  const nb::gil_scoped_acquire gil;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);  // a call may come while another exception propagates
  std::optional<uintptr_t> result;
  try {
    const nb::object returned = function(arguments...);
    result = returned.is_none() ? 0 : nb::cast<uintptr_t>(returned);
  } catch (const nb::python_error& error) {
    if (error.matches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();
  } catch (...) {
  }
  PyErr_Restore(type, value, trace);
  return result;
}

}  // namespace

PythonAllocator::PythonAllocator(const AllocatorFunctions& functions) {
  if (functions) std::tie(allocate_, free_, note_use_) = *functions;
}

PythonAllocator::~PythonAllocator() {
  if (ending()) {
    allocate_.release();
    free_.release();
    note_use_.release();
    return;
  }
  const nb::gil_scoped_acquire gil;
  allocate_.reset();
  free_.reset();
  note_use_.reset();
}

DeviceAllocator PythonAllocator::callbacks() {
  if (!allocate_.is_valid()) return {};
  DeviceAllocator out;
  out.context = this;
  out.allocate = [](void* context, int64_t bytes) {
    return reinterpret_cast<void*>(call(static_cast<PythonAllocator*>(context)->allocate_, bytes).value_or(0));
  };
  out.free = [](void* context, void* memory) {
    call(static_cast<PythonAllocator*>(context)->free_, reinterpret_cast<uintptr_t>(memory));
  };
  out.note_use = [](void* context, void* memory, void* stream) {
    return int32_t{call(static_cast<PythonAllocator*>(context)->note_use_, reinterpret_cast<uintptr_t>(memory),
                        reinterpret_cast<uintptr_t>(stream))
                       .has_value()};
  };
  return out;
}

}  // namespace lowtide::python
