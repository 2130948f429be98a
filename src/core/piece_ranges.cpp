#include "core/piece_ranges.h"

#include <algorithm>

namespace lowtide {

PieceRanges::PieceRanges(int64_t pieces, int workers, std::span<const int> node_cores)
    : pieces_(pieces),
      ranges_(static_cast<int>(std::clamp<int64_t>(std::min<int64_t>(workers, pieces), 1, kMost))),
      nodes_(static_cast<int>(std::clamp<size_t>(node_cores.size(), 1, kMostNodes))) {
  int64_t cores = 0, before = 0;
  for (const int count : node_cores) cores += count;
  for (int k = 0; k < nodes_; ++k) {
    first_[static_cast<size_t>(k)] = cores ? static_cast<int>((before * ranges_ + cores / 2) / cores) : 0;
    begun_[static_cast<size_t>(k)].store(0, std::memory_order_relaxed);
    if (cores) before += node_cores[static_cast<size_t>(k)];
  }
  first_[static_cast<size_t>(nodes_)] = ranges_;
  for (int r = 0; r < ranges_; ++r) {
    Range& range = range_[static_cast<size_t>(r)];
    range.next.store(pieces * r / ranges_, std::memory_order_relaxed);
    range.end = pieces * (r + 1) / ranges_;
  }
}

PieceRanges::Place PieceRanges::begin(int worker, int node) {
  if (nodes_ == 1 || node < 0 || node >= nodes_) return {0, ranges_, worker % ranges_, 0};
  const auto k = static_cast<size_t>(node);
  const int first = first_[k], count = first_[k + 1] - first;
  if (count == 0) return {0, ranges_, worker % ranges_, 0};
  return {first, count, first + begun_[k].fetch_add(1, std::memory_order_relaxed) % count, 0};
}

int64_t PieceRanges::take(Place& at) {
  for (; at.seen < ranges_; ++at.seen) {
    Range& range = range_[static_cast<size_t>(at.range)];
    if (range.next.load(std::memory_order_relaxed) < range.end) {
      const int64_t piece = range.next.fetch_add(1, std::memory_order_relaxed);
      if (piece < range.end) return piece;
    }
    // Try the own node's ranges in turn, then all others.
    if (at.seen + 1 < at.count) {
      at.range = at.first + (at.range - at.first + 1) % at.count;
    } else if (at.seen + 1 == at.count) {
      at.range = (at.first + at.count) % ranges_;
    } else {
      at.range = (at.range + 1) % ranges_;
    }
  }
  return -1;
}

void PieceRanges::drop_rest(const Place& at) {
  Range& range = range_[static_cast<size_t>(at.range)];
  range.next.store(range.end, std::memory_order_relaxed);
}

int PieceRanges::node_of(int64_t piece) const {
  int node = 0;
  while (node + 1 < nodes_ && piece >= pieces_ * first_[static_cast<size_t>(node) + 1] / ranges_) ++node;
  return node;
}

}  // namespace lowtide
