// The CPU backend: Highway kernels selected at run time, with work divided by elements over the process's thread pool.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"

namespace lowtide::cpu {

// target: a name from targets(), or "" for the best one here. Throws kInvalidArgument with the valid names.
std::unique_ptr<Backend> make_backend(const std::string& target);

// Packs the sign bits themselves: 1 for a clear sign bit, whatever the value, including -0 and NaNs. Throws
// kInvalidArgument for an inconsistent item.
void pack_sign_bits(const SignItem& item, int threads);

// Returns the Highway target bit of a name from targets().
int64_t target_bit(const std::string& name);

}  // namespace lowtide::cpu
