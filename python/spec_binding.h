#pragma once

#include <nanobind/nanobind.h>

namespace lowtide::python {

// What groups and parameters are and which of them are refused, and codecs by themselves: without an optimizer.
void bind_spec(nanobind::module_& m);

}  // namespace lowtide::python
