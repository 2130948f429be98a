// Cuts pieces of work into ranges to which workers return in every step.
//
// State is not touched when it is allocated, so each page lands on the node of the thread that first steps it. A single
// counter would hand a piece to another worker in every step, usually on another node. Here each NUMA node has a span
// of pieces in proportion to its cores, and each worker a range of its node's span. A worker that has finished takes
// pieces from other ranges, its own node's first: nobody waits while a piece is left, and equally fast workers keep
// their pieces.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>

namespace lowtide {

class PieceRanges {
 public:
  static constexpr int kMost = 256;  // ranges; further workers share them

  // node_cores: the number of cores of each node. Allocates nothing.
  PieceRanges(int64_t pieces, int workers, std::span<const int> node_cores);
  PieceRanges(const PieceRanges&) = delete;
  PieceRanges& operator=(const PieceRanges&) = delete;

  // A worker's position in the ranges.
  struct Place {
    int first, count;  // its node's ranges
    int range;         // the range it takes from now
    int seen;          // ranges found empty so far
  };

  // node: where the worker runs now, -1 if unknown. On a single node a worker has the same range in every step.
  Place begin(int worker, int node);
  // Returns the next piece, or -1 if all have been taken.
  int64_t take(Place& at);
  // Drops the rest of the range from which the worker took its last piece.
  void drop_rest(const Place& at);

  int ranges() const { return ranges_; }
  int node_of(int64_t piece) const;  // the node whose span contains it

 private:
  static constexpr int kMostNodes = 64;
  struct alignas(64) Range {  // one cache line each
    std::atomic<int64_t> next;
    int64_t end;
  };

  int64_t pieces_;
  int ranges_, nodes_;
  std::array<int, kMostNodes + 1> first_;  // each node's first range
  std::array<std::atomic<int>, kMostNodes> begun_;
  std::array<Range, kMost> range_;
};

}  // namespace lowtide
