// The parallel loop over all items of one call.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/signs.h"
#include "core/thread_pool.h"

namespace lowtide::cpu {

// Lays the units of all items (blocks, say; units(item) tells how many) end to end, cuts them into pieces of `at_once`
// and hands these to the threads. A piece of many small items becomes one call per item: work(item, first unit, end
// unit). starts: is set to the number of units before each item, and in all.
template <class Item, class Units, class Work>
void for_each_piece(std::span<const Item> items, int64_t at_once, int threads, std::vector<int64_t>& starts,
                    Units&& units, Work&& work) {
  starts.resize(items.size() + 1);
  int64_t total = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    starts[i] = total;
    total += units(items[i]);
  }
  starts[items.size()] = total;
  parallel_for((total + at_once - 1) / at_once, threads, [&](int64_t piece) {
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

// The same for items of signs, which are checked, each of count(item): work(item, its first element, how many). A cut
// within an item is at a multiple of kSignAlignment signs; a thread takes 128 KiB or more at a time, 5 us or more, and
// few enough that threads finish together.
template <class Item, class Count, class Work>
void for_each_sign_piece(std::span<const Item> items, int threads, Count&& count, Work&& work) {
  constexpr int64_t kUnitsAtOnce = 64;
  for (const Item& item : items) check(item);
  const auto before = [](const Item& item) { return item.first % kSignAlignment; };
  const auto units = [&](const Item& item) {
    return count(item) ? (before(item) + count(item) + kSignAlignment - 1) / kSignAlignment : 0;
  };
  std::vector<int64_t> starts;
  for_each_piece(items, kUnitsAtOnce, threads, starts, units, [&](const Item& item, int64_t begin, int64_t end) {
    const int64_t from = std::max<int64_t>(0, begin * kSignAlignment - before(item));
    work(item, from, std::min(count(item), end * kSignAlignment - before(item)) - from);
    return true;
  });
}

}  // namespace lowtide::cpu
