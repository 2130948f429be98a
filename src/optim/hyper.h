// The one place where hyper-parameters and options of groups are checked.
#pragma once

#include "lowtide/optimizer.h"

namespace lowtide {

// Throws kInvalidArgument naming the value and what was wanted.
void check_hyper(const Hyper& hyper);
void check_group(const GroupOptions& options);  // but for the state's name and the budget

}  // namespace lowtide
