// What errors of the core are in Python.
#pragma once

#include <nanobind/nanobind.h>

namespace lowtide::python {
void bind_errors(nanobind::module_& m);
}
