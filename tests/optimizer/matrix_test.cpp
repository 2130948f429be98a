// Claim: every combination of rule, state format, rounding, element types, master, tier and instruction set gives the
// bits of the plainest instruction set with all state in memory, or is refused by name.

#include "support/matrix.h"
#include "support/plainest_target.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

TEST(Matrix, EveryCellIsCorrectOrRefusedByName) {
  const std::vector<MatrixCell> cells = matrix_cells();
  const auto make = [](const std::string& target, int threads, const Memory& memory) {
    OptimizerOptions options{.threads = threads, .cpu_target = target, .memory = memory};
    return Optimizer(options);
  };
  const std::string plainest = plainest_target();
  MatrixRun wanted(cells, make(plainest, 1, {}));
  wanted.run();
  const int64_t state = wanted.optimizer().report().state_bytes, page = 4096;

  const TemporaryDirectory directory;
  // The state of a small share must fill many chunks, too.
  const int64_t chunk = std::clamp<int64_t>(state / 40 / page, 1, 16) * page;
  Memory half{state / 2 / page * page, directory.path(), -1, chunk}, least{4 * chunk, directory.path(), -1, chunk};
  MatrixCounts counts;
  int places = 0;
  int64_t streamed = 0;
  const std::vector<std::string> targets = cpu_targets();
  for (const std::string& target : targets)
    for (const Memory& memory : {Memory{}, half, least}) {
      if (memory.host >= 0 && target != targets.front() && target != plainest) continue;
      MatrixRun got(cells, make(target, 2, memory));
      got.run();
      const std::string where = target + " host=" + std::to_string(memory.host);
      counts.compare(cells, got, wanted, where);
      const MemoryReport report = got.optimizer().report();
      EXPECT_TRUE(memory.host < 0 || report.allocated_bytes <= memory.host) << where;
      streamed += report.disk_bytes, ++places;
    }
  Memory limited, managed, automatic, transfer;
  limited.device = 1 << 20, managed.managed = true, automatic.automatic = true, transfer.transfer = "zero_copy";
  for (const auto& [memory, word] :
       {std::pair(limited, "device=1048576"), std::pair(managed, "managed=1"), std::pair(automatic, "automatic=1"),
        std::pair(transfer, "transfer='zero_copy'")}) {
    counts.refuse(cells, word, [&, &of = memory] { make("", 1, of); });
    ++places;
  }
  EXPECT_EQ(counts.correct + counts.refused, counts.cells);
  EXPECT_GT(streamed, state) << "control: state has to live on disk";
  counts.print("cpu", cells, places);
}

}  // namespace
}  // namespace lowtide::testing
