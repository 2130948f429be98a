// The parallel loop over all items of one call.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/signs.h"
#include "core/cores.h"
#include "core/piece_ranges.h"
#include "core/thread_pool.h"

namespace lowtide::cpu {

// The number of units that a thread takes at a time.
struct Grain {
  int64_t most;   // small enough that threads finish together
  int64_t least;  // large enough that the cost of taking it is negligible
};

// Returns the number of threads for this many units: one per full piece, because waking a thread costs as much.
inline int workers_for(int64_t units, Grain grain, int threads) {
  return static_cast<int>(std::clamp<int64_t>((units + grain.most - 1) / grain.most, 1, std::max(threads, 1)));
}
// Returns the units in a piece: a worker gets at least eight pieces, if that leaves them large enough.
inline int64_t piece_units(int64_t units, Grain grain, int workers) {
  constexpr int64_t kPiecesEach = 8;
  return workers == 1 ? grain.most : std::clamp(units / (workers * kPiecesEach), grain.least, grain.most);
}

// Calls work(worker, piece) once for every piece in [0, pieces), from `workers` threads, numbered from 0. Pieces of a
// range come in increasing order; a false result ends the piece's range, because the rest is not needed.
template <class Work>
void for_ranges(int64_t pieces, int workers, Work&& work) {
  if (workers == 1) {  // avoids the ranges, which take 16 KiB
    return run_parallel(1, [&](int) {
      for (int64_t piece = 0; piece < pieces && work(0, piece);) ++piece;
    });
  }
  const MemoryNodes& nodes = process_nodes();
  PieceRanges ranges(pieces, workers, nodes.cores);
  run_parallel(workers, [&](int worker) {
    PieceRanges::Place at = ranges.begin(worker, nodes.cores.size() > 1 ? nodes.of(current_core()) : 0);
    for (int64_t piece; (piece = ranges.take(at)) >= 0;)
      if (!work(worker, piece)) ranges.drop_rest(at);
  });
}

// Lays the units of all items (such as blocks; units(item) returns their number) end to end, cuts them into pieces and
// assigns the pieces to threads, in the same way in every step with the same items. A piece of many small items becomes
// one call per item: work(item, first unit, end unit), which returns false if later units are not needed. starts:
// receives the number of units before each item, and in total.
template <class Item, class Units, class Work>
void for_each_piece(std::span<const Item> items, Grain grain, int threads, std::vector<int64_t>& starts, Units&& units,
                    Work&& work) {
  starts.resize(items.size() + 1);
  int64_t total = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    starts[i] = total;
    total += units(items[i]);
  }
  starts[items.size()] = total;
  if (total == 0) return;
  const int workers = workers_for(total, grain, threads);
  const int64_t at_once = piece_units(total, grain, workers);
  for_ranges((total + at_once - 1) / at_once, workers, [&](int, int64_t piece) {
    int64_t unit = piece * at_once;
    const int64_t end = std::min(total, unit + at_once);
    size_t i = static_cast<size_t>(std::upper_bound(starts.begin(), starts.end(), unit) - starts.begin()) - 1;
    for (; unit < end; ++i) {
      const int64_t stop = std::min(end, starts[i + 1]);
      if (stop > unit && !work(items[i], unit - starts[i], stop - starts[i])) return false;
      unit = stop;
    }
    return true;
  });
}

// Does the same for checked sign items with count(item) elements: calls work(item, first element, number of elements).
// An item is cut only at multiples of kSignAlignment signs. A thread takes at least 128 KiB or 5 us at a time, but
// little enough that threads finish together.
template <class Item, class Count, class Work>
void for_each_sign_piece(std::span<const Item> items, int threads, Count&& count, Work&& work) {
  constexpr int64_t kUnitsAtOnce = 64;
  for (const Item& item : items) check(item);
  const auto before = [](const Item& item) { return item.first % kSignAlignment; };
  const auto units = [&](const Item& item) {
    return count(item) ? (before(item) + count(item) + kSignAlignment - 1) / kSignAlignment : 0;
  };
  std::vector<int64_t> starts;
  for_each_piece(items, Grain{kUnitsAtOnce, kUnitsAtOnce}, threads, starts, units,
                 [&](const Item& item, int64_t begin, int64_t end) {
                   const int64_t from = std::max<int64_t>(0, begin * kSignAlignment - before(item));
                   work(item, from, std::min(count(item), end * kSignAlignment - before(item)) - from);
                   return true;
                 });
}

}  // namespace lowtide::cpu
