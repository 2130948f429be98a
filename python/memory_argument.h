// How Python hands over a memory budget: a lowtide.memory.budgets.Budget, or None for no limit.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <optional>
#include <string>
#include <tuple>

#include "lowtide/optimizer.h"

namespace lowtide::python {

using GivenMemory = std::optional<std::tuple<int64_t, std::string, int64_t, int64_t, int64_t, bool, std::string, bool>>;

inline std::optional<Memory> memory_from(const GivenMemory& given) {
  if (!given) return std::nullopt;
  const auto& [ram, disk, disk_bytes, chunk, device, managed, path, automatic] = *given;
  return Memory{ram, disk, disk_bytes, chunk, device, managed, path, automatic};
}

}  // namespace lowtide::python
