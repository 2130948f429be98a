#include "memory/path.h"

#include "core/error.h"

namespace lowtide {

std::optional<Path> find_path(const std::string& name) {
  if (name.empty()) return std::nullopt;
  for (const Path path : {Path::kCopy, Path::kHybrid, Path::kZeroCopy})
    if (name == path_name(path)) return path;
  fail(ErrorKind::kInvalidArgument, "got path='%s', wanted 'copy', 'zero_copy', 'hybrid', or '' to have it measured",
       name.c_str());
}

}  // namespace lowtide
