// Planning and measured rates, as lowtide._core shows them.
#pragma once

#include <nanobind/nanobind.h>

namespace lowtide::python {

void bind_planning(nanobind::module_& m);

}  // namespace lowtide::python
