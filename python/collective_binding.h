// lowtide._core's part of lowtide.distributed: the collective over two Python callables, and gradients to bits and
// back.
#pragma once

#include <nanobind/nanobind.h>

namespace lowtide::python {

void bind_collective(nanobind::module_& m);

}  // namespace lowtide::python
