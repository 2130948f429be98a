// Lists of ranks in error texts.
#pragma once

#include <string>
#include <vector>

namespace lowtide {

// "rank 3", "ranks 1, 2 and 5".
inline std::string name_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i)
    text += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]);
  return text;
}

}  // namespace lowtide
