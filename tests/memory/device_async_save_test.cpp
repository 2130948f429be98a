// Claim: on a device that runs everything late, in any legal order, a save beside steps writes the same file as a save
// of the host's twin at the same step, and the queued work has no race.
#include "support/device_async_saves.h"
#include "support/fake_twins.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

TEST(AsyncSaveOnAFakeDevice, FilesAreThoseOfTheHost) {
  Rng rng = seeded("saves beside steps on the fake device", 243);
  fake::FakeBackend* backend = nullptr;
  DeviceAsyncSaves saves;
  saves.device = "fake";
  const TemporaryDirectory scratch;
  saves.make = [&](Rng& own, lowtide::Memory& memory) {
    memory.chunk = own.between(1, 4) * 4096;
    memory.managed = own.chance(0.15);
    if (!memory.managed && own.chance(0.85)) memory.device = own.between(1, 30) * 4096;
    memory.transfer = memory.managed ? "" : pick(own, std::vector<std::string>{"copy", "hybrid", "zero_copy"});
    if (memory.transfer == "copy" && own.chance(0.5))
      memory.disk = scratch.path(), memory.host = own.between(4, 20) * 4096;
    fake::FakeBackendOptions options{.seed = own.next(), .steps_pinned = true, .guards = own.chance(0.5)};
    auto made = std::make_unique<fake::FakeBackend>(options);
    backend = made.get();
    return made;
  };
  saves.after = [&](Twins&) { expect_no_race(*backend); };
  saves.run(rng, share_of(300));
}

// The device is lost at a random call. The save still has the file of its call, or fails by name and leaves the old
// file. Nobody waits forever.
TEST(AsyncSaveOnAFakeDevice, ALostDeviceLeavesTheOldOrTheNew) {
  Rng rng = seeded("devices lost beside saves", 244);
  int64_t lost = 0, failed = 0, written = 0, wrong = 0;
  for (int trial = 0; trial < std::max(20, share_of(200)); ++trial) {
    const TemporaryDirectory files;
    const std::string wanted = files.file("sync"), got = files.file("async");
    lowtide::Memory memory{.chunk = 4096, .device = rng.between(4, 30) * 4096};
    const TemporaryDirectory scratch;
    if (rng.chance(0.5)) memory.disk = scratch.path(), memory.host = rng.between(4, 20) * 4096;
    fake::FakeBackendOptions options{rng.next()};
    FakeTwins twins(rng, random_setup(rng), memory, options);
    twins.add(DType::kF32, {rng.between(1, 9), 1000});
    twins.add(DType::kBF16, {5000});
    try {
      twins.step();
      twins.on_device().place_states();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << error.what();  // the budget holds no ring
      continue;
    }
    twins.on_device().save(got);
    const std::string older = read_file(got);
    twins.step();
    twins.on_host().save(wanted);
    const SaveHandle save = twins.on_device().save_async(got, "", rng.between(0, 6) * 4096);
    twins.fake.lose_at(rng.between(1, 40));
    try {
      for (int k = 0; k < 3; ++k) twins.step();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kDeviceLost) << error.what();
    }
    try {
      save.wait();
      ++written;
      wrong += read_file(got) != read_file(wanted);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kDeviceLost) << error.what();
      ++failed;
      wrong += read_file(got) != older;
    }
    lost += twins.fake.is_lost();
    EXPECT_EQ(files.names().size(), 2u);
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(lost, 0);
  figure("{} devices lost beside saves: {} files written, {} saves failed by name, files neither old nor new {}", lost,
         written, failed, wrong);
}

}  // namespace
}  // namespace lowtide::testing
