// Device memory from a framework's cache: two Python functions as a DeviceAllocator.
#pragma once

#include <nanobind/nanobind.h>

#include "lowtide/optimizer.h"

namespace lowtide::python {

// Owns references to the functions (allocate: bytes -> address, 0 if there is none; free: address) and takes the GIL to
// call them, in the thread of the optimizer's call. If allocate raises, the allocation fails; if free raises, the
// memory is not given back. While the interpreter ends, nothing is called any more: the memory goes with the process.
// Must outlive every user of callbacks().
class PythonAllocator {
 public:
  // functions: a pair of them, or None, and then callbacks() are empty.
  explicit PythonAllocator(const nanobind::object& functions);
  ~PythonAllocator();
  PythonAllocator(const PythonAllocator&) = delete;
  PythonAllocator& operator=(const PythonAllocator&) = delete;

  DeviceAllocator callbacks();

 private:
  nanobind::object allocate_, free_;
};

}  // namespace lowtide::python
