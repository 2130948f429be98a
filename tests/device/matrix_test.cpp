// Claim: on a device every combination of rule, state format, element types, master and tier (and, with all state on
// the device, rounding) gives the bits of scalar code with all state in host memory, or is refused by name.

#include "device/device_support.h"
#include "optim/optimizer_impl.h"
#include "support/matrix.h"
#include "support/plainest_target.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

TEST(DeviceMatrix, EveryCellIsCorrectOrRefusedByName) {
  LT_NEEDS_DEVICE();
  const std::vector<MatrixCell> cells = matrix_cells();
  OptimizerOptions plainest;
  plainest.cpu_target = plainest_target(), plainest.threads = 1;
  MatrixRun wanted(cells, Optimizer(plainest));
  wanted.run();
  const auto make = [](const lowtide::Memory& memory) {
    OptimizerOptions options{.memory = memory};
    return OptimizerEnv::make(options, system_env(), TestDevice::get().open());
  };

  const TemporaryDirectory directory;
  const int64_t state = wanted.optimizer().report().state_bytes, page = 4096;
  // The state of a small share must fill many chunks, too.
  const int64_t chunk = std::clamp<int64_t>(state / 40 / page, 1, 64) * page;
  lowtide::Memory half, least, managed, automatic, zero_copy, hybrid, disk;
  half.device = state / 2 / page * page, half.chunk = chunk;
  least.device = 5 * chunk, least.chunk = chunk;
  managed.managed = true, automatic.automatic = true;
  zero_copy = hybrid = half, zero_copy.transfer = "zero_copy", hybrid.transfer = "hybrid";
  disk = least, disk.host = 4 * chunk, disk.disk = directory.path();
  const bool reaches = TestDevice::get().backend->device()->steps_pinned();
  struct Tier {
    const char* name;
    lowtide::Memory memory;
    const char* refused;  // the part that the refusal names; nullptr: the tier exists
  };
  MatrixCounts counts;
  int places = 0;
  int64_t streamed = 0, from_disk = 0, above = 0;
  for (const auto& [name, memory, refused] :
       {Tier{"device", {}, nullptr}, Tier{"half", half, nullptr}, Tier{"least", least, nullptr},
        Tier{"managed", managed, nullptr}, Tier{"automatic", automatic, nullptr},
        Tier{"zero_copy", zero_copy, reaches ? nullptr : "transfer='zero_copy'"},
        Tier{"hybrid", hybrid, reaches ? nullptr : "transfer='hybrid'"}, Tier{"disk", disk, nullptr}}) {
    ++places;
    if (refused) {
      counts.refuse(cells, refused, [&, &of = memory] { make(of); });
      continue;
    }
    auto backend = TestDevice::get().open();
    Device* const device = backend->device();
    OptimizerOptions options{.memory = memory};
    // Rounding concerns only the kernels: all modes run with all state on the device.
    MatrixRun got(cells, OptimizerEnv::make(options, system_env(), std::move(backend)), device,
                  places == 1 ? "" : "auto");
    got.run();
    counts.compare(cells, got, wanted, name);
    const MemoryReport report = got.optimizer().report();
    streamed += report.moved_per_step, from_disk += report.disk_moved_per_step;
    above += memory.device >= 0 && report.device_bytes > memory.device;
  }
  EXPECT_EQ(counts.correct + counts.refused, counts.cells);
  EXPECT_EQ(above, 0) << "tiers that above more device memory than their budget";
  EXPECT_GT(streamed, 0) << "control: state has to stream";
  EXPECT_GT(from_disk, 0) << "control: state has to come from a disk";
  counts.print(TestDevice::get().name.c_str(), cells, places);
}

}  // namespace
}  // namespace lowtide::testing
