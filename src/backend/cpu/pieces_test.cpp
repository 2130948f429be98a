#include "backend/cpu/pieces.h"

#include <random>

#include "support/test.h"

namespace lowtide::cpu {
namespace {

struct Item {
  int64_t units;
};

constexpr Grain kGrain{256, 16};

// If workers have eight pieces of at least the least size, the last piece keeps the others waiting for at most an
// eighth of their time. With fewer units, threads without a full piece are not woken.
TEST(Pieces, AreSmallEnoughForTheThreadsThereAre) {
  double worst = 0;
  for (int threads = 1; threads <= 256; ++threads)
    for (int64_t units = 1; units < int64_t{1} << 22; units += units / 3 + 1) {
      const int workers = workers_for(units, kGrain, threads);
      const int64_t piece = piece_units(units, kGrain, workers);
      ASSERT_GE(workers, 1);
      ASSERT_LE(workers, threads);
      ASSERT_LE((workers - 1) * kGrain.most, units);
      ASSERT_LE(piece, kGrain.most);
      if (workers == 1) continue;
      ASSERT_GE(piece, kGrain.least);
      const double each = static_cast<double>(units) / workers;
      ASSERT_LE(static_cast<double>(piece), std::max(each / 8, static_cast<double>(kGrain.least)));
      worst = std::max(worst, static_cast<double>(piece) / each);
    }
  testing::figure("the last piece takes {} of a worker's time at most", worst);
  EXPECT_LE(worst, 0.125);
}

// The search for non-finite gradients relies on this: it finds the first bad unit, whatever is left out after it.
TEST(Pieces, AFalseResultLeavesOutOnlyWhatIsBehind) {
  std::mt19937 rng(3);
  for (int round = 0; round < 200; ++round) {
    const std::vector<Item> items(2000, Item{5});
    std::set<int64_t> bad;
    for (unsigned n = 1 + rng() % 4; n > 0; --n) bad.insert(static_cast<int64_t>(rng() % items.size()));
    std::atomic<int64_t> first{static_cast<int64_t>(items.size())};
    std::vector<int64_t> starts;
    for_each_piece(
        std::span<const Item>(items), kGrain, 1 + round % 8, starts, [](const Item& item) { return item.units; },
        [&](const Item& item, int64_t, int64_t) {
          const int64_t index = &item - items.data();
          if (index >= first.load()) return false;
          if (!bad.count(index)) return true;
          for (int64_t seen = first.load(); index < seen;)
            if (first.compare_exchange_weak(seen, index)) break;
          return false;
        });
    ASSERT_EQ(first.load(), *bad.begin());
  }
}

}  // namespace
}  // namespace lowtide::cpu
