// Signs as bits, as lowtide._core shows them.
#pragma once

#include <nanobind/nanobind.h>

namespace lowtide::python {

void bind_sign(nanobind::module_& m);

}  // namespace lowtide::python
