// An Optimizer whose files and state memory go through a given Env: the seam where tests fail any call of a whole
// optimizer. Not part of the public interface.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "core/env.h"
#include "lowtide/optimizer.h"

namespace lowtide {

struct OptimizerEnv {
  // As Optimizer(options). env outlives the optimizer. device: where parameters are, if not in host memory.
  static Optimizer make(const OptimizerOptions& options, Env& env, std::unique_ptr<Backend> device = nullptr);
};

}  // namespace lowtide
