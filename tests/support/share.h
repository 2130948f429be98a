// The share of random cases that a test takes: LOWTIDE_TEST_SHARE, 1 by default. ctest's entries of long tests set it,
// and their `_soak` entries, which `make soak` runs, do not.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace lowtide::testing {

// So many cases, and what is expected of so many.
inline int share_of(int count) {
  static const double share = [] {
    const char* const set = std::getenv("LOWTIDE_TEST_SHARE");
    return set ? std::atof(set) : 1.0;
  }();
  return std::max(1, static_cast<int>(std::lround(share * count)));
}

}  // namespace lowtide::testing
