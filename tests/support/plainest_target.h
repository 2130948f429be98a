// The instruction set whose bits all others must give: scalar code, one float at a time, or the plainest set in the
// library. Highway compiles nothing below NEON for ARM64, because all its processors have NEON, and LOWTIDE_NATIVE
// compiles only one set. There tests compare threads and memory, and compare results with the committed lists, which
// scalar code made; they print which instruction sets they compared.
#pragma once

#include "lowtide/optimizer.h"
#include "support/test.h"

namespace lowtide::testing {

inline std::string plainest_target() { return cpu_targets().back(); }  // best first

// "avx512, avx2, scalar, all with scalar"
inline std::string compared_targets() {
  std::string names;
  for (const std::string& target : cpu_targets()) names += target + ", ";
  return names + "all with " + plainest_target();
}

}  // namespace lowtide::testing
