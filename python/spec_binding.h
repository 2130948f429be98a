#pragma once

#include <nanobind/nanobind.h>

namespace lowtide::python {

// Answers about groups, parameters and codecs that need no optimizer.
void bind_spec(nanobind::module_& m);

}  // namespace lowtide::python
