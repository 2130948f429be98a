// Names of what the CUDA backend runs: "exact" or "fast" arithmetic, with ":N" on the device of that ordinal.
#pragma once

#include <string>

namespace lowtide::cuda_host {

inline constexpr const char kExact[] = "exact";  // the bits of the CPU backend
inline constexpr const char kFast[] = "fast";

struct Target {
  bool fast = false;
  int ordinal = -1;  // -1: the present device
};

// Throws kInvalidArgument for another name.
Target parse_target(const std::string& text);

}  // namespace lowtide::cuda_host
