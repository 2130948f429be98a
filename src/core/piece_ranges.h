// Pieces of work, cut into ranges that workers come back to in every step.
//
// State is allocated untouched, so that its pages lie where the first thread to step them runs. With one counter for
// all workers a piece would go to another worker in every step, on machines of several nodes mostly to another node's.
// Here each node of memory has a span of the pieces as long as its share of the cores, and each worker a range of its
// node's span. Who has finished takes what is left of the others' ranges, those of its node first: nobody waits while a
// piece is left, and where all are equally fast pieces stay with their workers.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>

namespace lowtide {

class PieceRanges {
 public:
  static constexpr int kMost = 256;  // ranges; further workers begin with the remainders

  // node_cores: how many cores each node has. Allocates nothing.
  PieceRanges(int64_t pieces, int workers, std::span<const int> node_cores);
  PieceRanges(const PieceRanges&) = delete;
  PieceRanges& operator=(const PieceRanges&) = delete;

  // Where a worker looks for pieces.
  struct Place {
    int first, count;  // its node's ranges
    int range;         // that it takes from now
    int seen;          // ranges that it has found empty
  };

  // node: that it runs on now; -1: not known. On one node a worker has the same range in every step.
  Place begin(int worker, int node);
  // The next piece, or -1: all have been taken.
  int64_t take(Place& at);
  // Nobody needs the rest of the range that the worker took its last piece from.
  void drop_rest(const Place& at);

  int ranges() const { return ranges_; }
  int node_of(int64_t piece) const;  // whose span it is in

 private:
  static constexpr int kMostNodes = 64;
  struct alignas(64) Range {  // a line of the cache each
    std::atomic<int64_t> next;
    int64_t end;
  };

  int64_t pieces_;
  int ranges_, nodes_;
  std::array<int, kMostNodes + 1> first_;  // range of each node
  std::array<std::atomic<int>, kMostNodes> begun_;
  std::array<Range, kMost> range_;
};

}  // namespace lowtide
