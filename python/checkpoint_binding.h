// Binds describe_checkpoint(): the contents of a checkpoint file in numbers.
#pragma once

#include <nanobind/nanobind.h>

namespace lowtide::python {

void bind_checkpoint(nanobind::module_& m);

}  // namespace lowtide::python
