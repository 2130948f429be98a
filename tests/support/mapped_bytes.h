// The bytes that are mapped into this process, by the list of its mappings: an emulator shows the process's own there,
// and its own in the sum that /proc/self/statm has.
#pragma once

#include "support/test.h"

namespace lowtide::testing {

inline int64_t mapped_bytes() {
  std::ifstream file("/proc/self/maps");
  int64_t bytes = 0;
  for (std::string line; std::getline(file, line);) {
    unsigned long long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx", &begin, &end) == 2) bytes += static_cast<int64_t>(end - begin);
  }
  EXPECT_GT(bytes, 0) << "cannot read /proc/self/maps";
  return bytes;
}

}  // namespace lowtide::testing
