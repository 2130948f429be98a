// The gradients that a norm was measured of, and whether a step still finds them.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tensor_reader.h"

namespace lowtide::python {

// Knows gradients by weak references, so that it keeps none of them alive, and by torch's counts of their changes. One
// walk over the parameters each to make it and to ask it; both need the GIL.
class MeasuredGradients {
 public:
  explicit MeasuredGradients(const nb::list& params);  // those that have a gradient

  // "same"; "changed": the same tensors, some with other values; "replaced": none of them is there; "mixed": some are.
  std::string among(const nb::list& params) const;

 private:
  struct Seen {
    nb::object grad;  // a weak reference
    int64_t version;
  };

  int64_t version_of(nb::handle grad) const;
  bool any_among(const nb::list& params) const;

  TensorReader reader_;
  std::vector<Seen> seen_;
};

}  // namespace lowtide::python
