// Counts the forks of this process. Process ids do not tell: in a new pid namespace the child may have its parent's id.
#pragma once

#include <cstdint>

namespace lowtide {

// Forks between the process that called this first and the current one. Throws kOutOfMemory, only in the first call.
int64_t forks();

}  // namespace lowtide
