// Limits that the optimizer, the backends and their kernels share.
#pragma once

#include <cstddef>

namespace lowtide {

inline constexpr int kMaxStates = 4;        // per rule
inline constexpr int kMaxArrays = 5;        // per parameter: its states and its residual
inline constexpr int kBlockElements = 256;  // elements that share a scale
inline constexpr size_t kArgsBytes = 64;    // room for any rule's Args

}  // namespace lowtide
