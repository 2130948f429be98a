// Remembers the gradients whose norm was measured, to tell whether a step still finds them.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tensor_reader.h"

namespace lowtide::python {

// Holds weak references to gradients, which keep none of them alive, and torch's counts of their changes. The
// constructor and among() each walk over the parameters once, with the GIL.
class MeasuredGradients {
 public:
  explicit MeasuredGradients(const nb::list& params);  // parameters without a gradient are skipped

  // "same"; "changed": the same tensors, some with other values; "replaced": none of the tensors remain; "mixed": some
  // do.
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
