// What a checkpoint file holds, as lowtide._core shows it.
#pragma once

#include <nanobind/nanobind.h>

namespace lowtide::python {

void bind_checkpoint(nanobind::module_& m);

}  // namespace lowtide::python
