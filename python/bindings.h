// The parts of the module lowtide._core, each in x_binding.cpp.
#pragma once

#include <nanobind/nanobind.h>

namespace lowtide::python {

void bind_checkpoint(nanobind::module_& m);  // the contents of a checkpoint file in numbers
void bind_collective(nanobind::module_& m);  // the collective over two Python functions; gradients to bits and back
void bind_planning(nanobind::module_& m);    // planning and measured rates
void bind_sign(nanobind::module_& m);        // signs as bits
void bind_spec(nanobind::module_& m);        // answers about groups, parameters and codecs that need no optimizer

// Translates errors of the core to Python exceptions. An OSError has `complete`: whether the call did all it should but
// for the disk. Errors of a collective have `cause`: "disagreement", "digest", "damage" or "rank failed".
void bind_errors(nanobind::module_& m);

}  // namespace lowtide::python
