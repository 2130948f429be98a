// How often this process was forked: process ids do not tell, in a new pid namespace the child may have its parent's.
#pragma once

#include <cstdint>

namespace lowtide {

// Forks on the way from the process that asked first to this one. Throws kOutOfMemory, the first time only.
int64_t forks();

}  // namespace lowtide
