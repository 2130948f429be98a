// The share of random cases that a test takes: LOWTIDE_TEST_SHARE, 1 by default. ctest's entries of long tests set it,
// and their `_soak` entries, which `make soak` runs, do not.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>

namespace lowtide::testing {

inline double share() {
  static const double set = [] {
    const char* const text = std::getenv("LOWTIDE_TEST_SHARE");
    return text ? std::atof(text) : 1.0;
  }();
  return set;
}

// So many cases, and what is expected of so many.
inline int share_of(int count) { return std::max(1, static_cast<int>(std::lround(share() * count))); }

// Multiples of the golden ratio, less their whole parts: spread evenly over [0, 1) by any run of n.
inline double spread_at(int64_t n) {
  const double at = static_cast<double>(n) * 0.6180339887498949;
  return at - std::floor(at);
}

// Whether the share has case `n` of a grid. A short row may get none.
inline bool in_share(int64_t n) { return spread_at(n) < share(); }

// The same of row x column, but every share has a case of each row, in columns that take turns.
inline bool in_share(int64_t row, int64_t column, int64_t columns) {
  return column == static_cast<int64_t>(spread_at(row) * static_cast<double>(columns)) ||
         in_share(row * columns + column);
}

// How far apart the cases are that the share takes of a long row of like ones, 1 for all.
inline int64_t spread() { return std::max<int64_t>(1, std::lround(1 / share())); }

}  // namespace lowtide::testing
