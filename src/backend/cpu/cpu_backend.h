// The CPU backend: Highway kernels chosen at run time, work cut by elements over the process's thread pool.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"

namespace lowtide::cpu {

// target: "" for the best this CPU can run, or a name of targets(). Throws kInvalidArgument naming those there are.
std::unique_ptr<Backend> make_backend(const std::string& target);

// The Highway target bit of a name of targets().
int64_t target_bit(const std::string& name);

}  // namespace lowtide::cpu
