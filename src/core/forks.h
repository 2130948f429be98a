// Counts the forks of this process. Process ids cannot: in a new pid namespace the child may have its parent's id.
#pragma once

#include <cstdint>

namespace lowtide {

// The number of forks between the first caller's process and this one. Only the first call can throw kOutOfMemory.
int64_t forks();

}  // namespace lowtide
