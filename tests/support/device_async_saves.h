// Compares saves beside steps on a device with synchronous saves of the twin in host memory.
#pragma once

#include "core/error.h"
#include "support/async_save_case.h"
#include "support/device_twins.h"
#include "support/test.h"

namespace lowtide::testing {

// make: returns a backend, which the twins own, and sets its memory budget. after: runs at the end of each trial.
struct DeviceAsyncSaves {
  std::function<std::unique_ptr<Backend>(Rng& rng, lowtide::Memory& memory)> make;
  std::function<void(Twins& twins)> after = [](Twins&) {};
  const char* device = "";

  void run(Rng& rng, int cases) const {
    int64_t saves = 0, differing = 0, bytes = 0, copied = 0, refused = 0, moved = 0;
    std::map<std::string, int64_t> transfers;
    while (saves < cases) {
      lowtide::Memory memory;
      const Config setup = random_setup(rng);
      std::unique_ptr<Backend> backend = make(rng, memory);
      const TemporaryDirectory files;
      Twins twins(rng, setup, memory, std::move(backend));
      for (int64_t n = rng.between(1, 5); n > 0; --n)
        twins.add(pick(rng, std::vector{DType::kF32, DType::kBF16, DType::kF16}), random_sizes(rng));
      try {
        for (int64_t n = rng.between(1, 3); n > 0; --n) twins.step(0.8);
        twins.on_device().place_states();
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("device memory"), std::string::npos) << error.what();
        ++refused;
        continue;
      }
      for (int64_t n = rng.between(1, 3); n > 0; --n) {
        const std::string wanted = files.file("sync"), got = files.file("async");
        twins.on_host().save(wanted);
        const SaveHandle save = twins.on_device().save_async(got, "", rng.chance(0.3) ? -1 : rng.between(0, 6) * 4096);
        for (int64_t k = rng.between(0, 3); k > 0; --k) {
          if (rng.chance(0.15)) moved += twins.on_device().demote(rng.between(0, 10) * 4096) > 0;
          if (rng.chance(0.1)) twins.on_device().offload(), ++moved;
          if (rng.chance(0.2)) twins.on_device().prefetch(rng.between(0, 8) * 4096, twins.queue());
          twins.step(0.8);
        }
        EXPECT_TRUE(save.wait());
        const std::string a = read_file(wanted), b = read_file(got);
        EXPECT_FALSE(a.empty());
        differing += a != b;
        bytes += static_cast<int64_t>(a.size());
        copied += save.copied_bytes();
        ++saves;
      }
      // Each side reads the other's file.
      twins.on_host().load(files.file("async"));
      twins.on_device().load(files.file("sync"));
      twins.step();
      twins.on_device().synchronize();
      EXPECT_EQ(twins.differing(), 0);
      const MemoryReport report = twins.on_device().report();
      ++transfers[report.managed_bytes ? "managed" : report.moved_per_step ? report.transfer : "resident"];
      after(twins);
    }
    EXPECT_EQ(differing, 0);
    EXPECT_TRUE(copied > 0 || cases < 100);  // a step overtakes the thread only by chance
    std::string kinds;
    for (const auto& [name, count] : transfers) kinds += " " + name + " " + std::to_string(count);
    figure(
        "{}: {} saves beside steps (optimizers:{}; {} moves of state meanwhile): {} files differ from the host's, of "
        "{} bytes; {} bytes copied; {} budgets refused",
        device, saves, kinds, moved, differing, bytes, copied, refused);
  }
};

}  // namespace lowtide::testing
