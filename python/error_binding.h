// Translates errors of the core to Python exceptions. An OSError has `complete`: whether the call did all it should but
// for the disk. Errors of a collective have `cause`: "disagreement", "digest", "damage" or "rank failed".
#pragma once

#include <nanobind/nanobind.h>

namespace lowtide::python {
void bind_errors(nanobind::module_& m);
}
