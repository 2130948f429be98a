// How Python hands over hyper-parameters: a dict of those that differ from what there is.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>
#include <type_traits>

#include "lowtide/optimizer.h"
#include "optim/hyper.h"

namespace lowtide::python {

// Missing keys keep `h`'s values; unknown keys are refused.
inline Hyper hyper_from(Hyper h, const nanobind::dict& given) {
  size_t used = 0;
  for_each_hyper(h, [&](const char* name, auto& value) {
    if (!given.contains(name)) return;
    ++used;
    try {
      value = nanobind::cast<std::remove_reference_t<decltype(value)>>(given[name]);
    } catch (const nanobind::cast_error&) {
      const std::string text = nanobind::cast<std::string>(nanobind::repr(given[name]));
      throw nanobind::value_error(("got " + std::string(name) + "=" + text + ", wanted a number").c_str());
    }
  });
  if (used != given.size()) {
    const std::string keys = nanobind::cast<std::string>(nanobind::repr(given.keys()));
    throw nanobind::value_error(("unknown hyper-parameter among " + keys).c_str());
  }
  return h;
}

}  // namespace lowtide::python
