// Counts the bytes mapped into this process from its list of mappings. Under an emulator, the list shows the process's
// own mappings, while /proc/self/statm counts the emulator's.
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
