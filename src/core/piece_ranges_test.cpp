#include "core/piece_ranges.h"

#include <queue>
#include <random>

#include "core/thread_pool.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

// One step of simulated workers. Worker w needs seconds[w] for each piece and runs on node_of[w].
struct Step {
  std::vector<int> by;        // each piece's worker
  double last = 0, work = 0;  // when the last worker finishes; total seconds of work
  bool once = true;           // every piece was taken exactly once
};

std::vector<int> nodes_of(int workers, const std::vector<int>& node_cores) {
  std::vector<int> nodes;
  int64_t cores = 0, end = 0;
  for (const int count : node_cores) cores += count;
  for (size_t k = 0; k < node_cores.size(); ++k) {
    end += node_cores[k];
    nodes.resize(static_cast<size_t>((end * workers + cores / 2) / cores), static_cast<int>(k));
  }
  return nodes;
}

Step simulate(int64_t pieces, const std::vector<double>& seconds, const std::vector<int>& node_cores) {
  const int workers = static_cast<int>(seconds.size());
  const std::vector<int> nodes = nodes_of(workers, node_cores);
  PieceRanges ranges(pieces, workers, node_cores);
  std::vector<PieceRanges::Place> places;
  for (int w = 0; w < workers; ++w) places.push_back(ranges.begin(w, nodes[static_cast<size_t>(w)]));
  using Free = std::pair<double, int>;  // when a worker is free, and its index
  std::priority_queue<Free, std::vector<Free>, std::greater<>> next;
  for (int w = 0; w < workers; ++w) next.emplace(0, w);
  Step step{std::vector<int>(static_cast<size_t>(pieces), -1)};
  while (!next.empty()) {
    const auto [now, w] = next.top();
    next.pop();
    const int64_t piece = ranges.take(places[static_cast<size_t>(w)]);
    step.last = std::max(step.last, now);
    if (piece < 0) continue;
    step.once &= step.by[static_cast<size_t>(piece)] < 0;
    step.by[static_cast<size_t>(piece)] = w;
    step.work += seconds[static_cast<size_t>(w)];
    next.emplace(now + seconds[static_cast<size_t>(w)], w);
  }
  step.once &= std::find(step.by.begin(), step.by.end(), -1) == step.by.end();
  return step;
}

std::vector<double> speeds(int workers, double spread, std::mt19937& rng) {
  std::uniform_real_distribution<double> at(1 - spread, 1 + spread);
  std::vector<double> seconds(static_cast<size_t>(workers));
  for (double& each : seconds) each = at(rng);
  return seconds;
}

const std::vector<std::vector<int>> kMachines = {{2}, {64}, {64, 64}, {48, 16}, {16, 16, 16, 16, 16, 16, 16, 16}};

// No worker waits while a piece is left, so all finish within one piece of the first idle worker (Graham's bound for
// list scheduling): last <= average + the slowest worker's piece.
TEST(PieceRanges, ForOneTo256WorkersOnAnyNodesTheLastIsDoneWithinOnePieceOfTheFirst) {
  std::mt19937 rng(22);
  int64_t runs = 0;
  double worst = 0;
  for (const auto& machine : kMachines)
    for (int workers = 1; workers <= 256; workers += workers < 20 ? 1 : 17)
      for (const int64_t pieces : {int64_t{1}, int64_t{2}, int64_t{7}, int64_t{workers}, int64_t{workers} + 1,
                                   int64_t{8} * workers, int64_t{1000}, int64_t{4096}}) {
        const std::vector<double> seconds = speeds(workers, 0.3, rng);
        const Step step = simulate(pieces, seconds, machine);
        ASSERT_TRUE(step.once) << workers << " workers, " << pieces << " pieces";
        double rate = 0;
        for (const double each : seconds) rate += 1 / each;
        const double bound = static_cast<double>(pieces) / rate + *std::max_element(seconds.begin(), seconds.end());
        ASSERT_LE(step.last, bound + 1e-9) << workers << " workers, " << pieces << " pieces";
        worst = std::max(worst, step.last / bound);
        ++runs;
      }
  figure("{} cuts, the last worker done at {} of the bound or before", runs, worst);
}

// Fractions of the pieces that changed worker, or node, since the previous step.
struct Moved {
  double worker, node;
};
Moved moved(const Step& a, const Step& b, const std::vector<int>& nodes) {
  Moved all{};
  for (size_t i = 0; i < a.by.size(); ++i) {
    all.worker += a.by[i] != b.by[i];
    all.node += nodes[static_cast<size_t>(a.by[i])] != nodes[static_cast<size_t>(b.by[i])];
  }
  return {all.worker / static_cast<double>(a.by.size()), all.node / static_cast<double>(a.by.size())};
}

// Speeds are redrawn in every step, 10 % up or down. A worker loses at most the pieces it is late for, first to its own
// node. A node of n workers is late by the mean of n draws, of deviation 0.1 / sqrt(3 n). Within four deviations of two
// steps, 0.33 / sqrt(n) of the pieces change nodes, plus one per node where pieces are few.
TEST(PieceRanges, PiecesKeepToTheirNodeWhereSpeedsChange) {
  std::mt19937 rng(6);
  for (const auto& machine : kMachines) {
    if (machine.size() < 2) continue;
    for (const int workers : {32, 128, 256}) {
      const int64_t pieces = 64 * workers;
      const std::vector<int> nodes = nodes_of(workers, machine);
      Moved all{};
      constexpr int kSteps = 20;
      Step before = simulate(pieces, speeds(workers, 0.1, rng), machine);
      for (int n = 0; n < kSteps; ++n) {
        Step now = simulate(pieces, speeds(workers, 0.1, rng), machine);
        const Moved here = moved(before, now, nodes);
        all.worker += here.worker / kSteps, all.node += here.node / kSteps;
        before = std::move(now);
      }
      const double least = static_cast<double>(*std::min_element(machine.begin(), machine.end()));
      double cores = 0;
      for (const int count : machine) cores += count;
      const double smallest = least * workers / cores;
      const double bound =
          0.33 / std::sqrt(smallest) + static_cast<double>(machine.size()) / static_cast<double>(pieces);
      figure(
          "{} nodes, {} workers: {} % of pieces change worker, {} % node (bound {} %); with one counter {} % would "
          "change node",
          machine.size(), workers, 100 * all.worker, 100 * all.node, 100 * bound,
          100 * (1 - 1.0 / static_cast<double>(machine.size())));
      EXPECT_LE(all.node, bound);
      EXPECT_LE(all.worker, 0.2);  // twice the 10 % by which a worker can be late
    }
  }
}

// A node's span matches its share of the cores to within half a range at each end.
TEST(PieceRanges, EachNodeHasItsShare) {
  for (const auto& machine : kMachines) {
    constexpr int64_t kPieces = 12800;
    const PieceRanges ranges(kPieces, 128, machine);
    std::vector<int64_t> of(machine.size());
    int64_t cores = 0;
    for (int64_t i = 0; i < kPieces; ++i) ++of[static_cast<size_t>(ranges.node_of(i))];
    for (const int count : machine) cores += count;
    for (size_t k = 0; k < machine.size(); ++k)
      EXPECT_LE(std::abs(of[k] - kPieces * machine[k] / cores), kPieces / ranges.ranges());
  }
}

TEST(PieceRanges, ThreadsTakeEveryPieceOnceAndLeaveWhatIsDropped) {
  constexpr int64_t kPieces = 20000;
  for (const bool drops : {false, true}) {
    std::vector<std::atomic<int>> taken(kPieces);
    PieceRanges ranges(kPieces, 6, std::vector<int>{1, 1});
    run_parallel(4, [&](int worker) {
      PieceRanges::Place at = ranges.begin(worker, worker % 2);
      for (int64_t piece; (piece = ranges.take(at)) >= 0;) {
        ++taken[static_cast<size_t>(piece)];
        if (drops && piece % 5000 == 4000) ranges.drop_rest(at);
      }
    });
    int64_t missing = 0;
    for (int64_t i = 0; i < kPieces; ++i) {
      ASSERT_LE(taken[static_cast<size_t>(i)].load(), 1);
      missing += taken[static_cast<size_t>(i)] == 0;
      if (!drops) {
        ASSERT_EQ(taken[static_cast<size_t>(i)].load(), 1);
      }
    }
    EXPECT_EQ(missing > 0, drops);
  }
}

}  // namespace
}  // namespace lowtide::testing
