// How Python says that a tensor is a shard: (sizes of the whole, whether the cut is not between rows[, where it
// begins]), or None.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "lowtide/optimizer.h"

namespace lowtide::python {

inline std::optional<WholeParam> whole_from(nanobind::handle given) {
  if (given.is_none()) return {};
  const auto parts = nanobind::cast<nanobind::sequence>(given);
  WholeParam whole{nanobind::cast<std::vector<int64_t>>(parts[0]), nanobind::cast<bool>(parts[1])};
  if (nanobind::len(parts) > 2) whole.offsets = nanobind::cast<std::vector<int64_t>>(parts[2]);
  return whole;
}

}  // namespace lowtide::python
