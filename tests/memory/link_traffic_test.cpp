// Claims: streaming state is read as often as it is written, apart from reads ahead; the caller's queue never waits for
// state on its way back to the host, not even after steps with state read ahead into borrowed memory.
#include "support/device_twins.h"
#include "support/fake/fake_backend.h"
#include "support/framework_cache.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int64_t kChunk = 16384, kBudget = 4 * kChunk, kBorrowed = 8 * kChunk;

enum class Source { kDriver, kCache, kCacheOfStreams };

TEST(LinkTraffic, TheCallersQueueNeverWaitsForWriteBack) {
  Rng rng = seeded("link traffic", 99);
  int64_t steps = 0, borrowed = 0, compared = 0, waits = 0;
  for (const Source source : {Source::kDriver, Source::kCache, Source::kCacheOfStreams})
    for (const char* transfer : {"copy", "hybrid"})
      for (int trial = 0; trial < 6; ++trial) {
        SCOPED_TRACE(std::string(transfer) + ", source " + std::to_string(static_cast<int>(source)));
        fake::FakeBackendOptions options{.seed = rng.next(), .steps_pinned = true, .guards = trial % 2 == 1};
        auto backend = std::make_unique<fake::FakeBackend>(options);
        fake::FakeBackend& fake = *backend;
        Cache cache{fake};
        DeviceAllocator allocator;
        if (source != Source::kDriver) allocator = {&cache, Cache::allocate, Cache::free};
        if (source == Source::kCacheOfStreams) allocator.note_use = Cache::note_use;
        lowtide::Memory memory{.chunk = kChunk, .device = kBudget, .transfer = transfer};
        Config setup{.state = "fp32", .hyper = default_hyper("adamw")};
        Twins twins(rng, setup, memory, std::move(backend), allocator);
        for (int i = 0; i < 3; ++i) twins.add(DType::kBF16, {10000});  // 240 KB of state
        for (int i = 0; i < 8; ++i, ++steps) {
          // The last step's slots may still be on their way to the host; the caller's next work is a forward pass.
          if (i > 0) borrowed += twins.on_device().prefetch(kBorrowed, twins.queue());
          twins.step();
        }
        const MemoryReport report = twins.on_device().report();
        EXPECT_GT(report.written_bytes, 0);
        EXPECT_LE(report.read_bytes, report.written_bytes + kBudget + kBorrowed);
        waits += fake.waits_for_write_back(twins.queue());
        EXPECT_EQ(fake.waits_for_write_back(twins.queue()), 0);
        EXPECT_EQ(twins.differing(), 0);
        expect_no_race(fake);
        compared += twins.compared();
        if (source != Source::kCacheOfStreams) continue;
        twins.on_device().synchronize();
        for (const Cache::Unused& given : cache.unused) EXPECT_TRUE(cache.may_use(given));
      }
  EXPECT_GT(borrowed, 0);
  figure("{} steps, {} bytes borrowed, {} waits for write-back; differing bytes 0 of {}", steps, borrowed, waits,
         compared);
}

}  // namespace
}  // namespace lowtide::testing
