// The one place where hyper-parameters are checked.
#pragma once

#include "lowtide/optimizer.h"

namespace lowtide {

// Throws kInvalidArgument naming the value and what was wanted.
void check_hyper(const Hyper& hyper);

}  // namespace lowtide
