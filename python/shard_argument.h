// How Python says that a tensor is a shard: (sizes of the whole, whether the cut is not between rows, where it begins),
// or None.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "lowtide/optimizer.h"

namespace lowtide::python {

using GivenWhole = std::optional<std::tuple<std::vector<int64_t>, bool, std::vector<int64_t>>>;

inline std::optional<WholeParam> whole_from(const GivenWhole& given) {
  if (!given) return std::nullopt;
  const auto& [sizes, rows_cut, offsets] = *given;
  return WholeParam{sizes, rows_cut, offsets};
}

}  // namespace lowtide::python
