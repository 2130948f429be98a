// How Python hands over a memory budget: a tuple with the fields of lowtide.memory.budgets.Budget, or None.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <optional>
#include <string>
#include <tuple>

#include "lowtide/optimizer.h"

namespace lowtide::python {

// None: no limit.
inline std::optional<Memory> memory_from(const nanobind::object& given) {
  if (given.is_none()) return std::nullopt;
  const auto [ram, disk, disk_bytes, chunk, device, managed, path, automatic] =
      nanobind::cast<std::tuple<int64_t, std::string, int64_t, int64_t, int64_t, bool, std::string, bool>>(given);
  return Memory{ram, disk, disk_bytes, chunk, device, managed, path, automatic};
}

}  // namespace lowtide::python
