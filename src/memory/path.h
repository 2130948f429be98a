// How state that is not kept on a device reaches it, each step.
#pragma once

#include <optional>
#include <string>

namespace lowtide {

enum class Path {
  kCopy,      // copied into a slot in device memory, stepped there, and copied back
  kHybrid,    // copied into a slot; the step reads that and writes to host memory
  kZeroCopy,  // the step reads and writes host memory
};

inline constexpr const char* kPathNames[] = {"copy", "hybrid", "zero_copy"};
inline const char* path_name(Path path) { return kPathNames[static_cast<int>(path)]; }

// Nothing for "", which leaves the choice. Throws kInvalidArgument for anything else that is no name of a path.
std::optional<Path> find_path(const std::string& name);

}  // namespace lowtide
