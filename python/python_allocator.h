// Device memory from a framework's cache: three Python functions as a DeviceAllocator.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <optional>
#include <tuple>

#include "arguments.h"
#include "lowtide/optimizer.h"

namespace lowtide::python {

using AllocatorFunctions = std::optional<std::tuple<Allocate, Free, NoteUse>>;

// Owns references to the functions (allocate: bytes -> address, 0 if there is none; free: address; note_use: address,
// queue) and takes the GIL to call them, in the thread of the optimizer's call. If allocate raises, the allocation
// fails; if free raises, the memory is not returned; if note_use raises, it is returned once nothing uses it. While the
// interpreter finalizes, nothing is called: the memory goes with the process. Must outlive every user of callbacks().
class PythonAllocator {
 public:
  explicit PythonAllocator(const AllocatorFunctions& functions);  // if it is empty, so are callbacks()
  ~PythonAllocator();
  PythonAllocator(const PythonAllocator&) = delete;
  PythonAllocator& operator=(const PythonAllocator&) = delete;

  DeviceAllocator callbacks();

 private:
  nanobind::object allocate_, free_, note_use_;
};

}  // namespace lowtide::python
