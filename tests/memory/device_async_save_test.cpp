// Claim: on a device that runs everything late, in any legal order, a save beside steps writes the file that the host's
// twin writes at the same step, and what is queued has no race.
#include <gtest/gtest.h>

#include "support/device_async_saves.h"
#include "support/fake/fake_backend.h"
#include "support/fake_races.h"
#include "support/share.h"

namespace lowtide::testing {
namespace {

TEST(AsyncSaveOnAFakeDevice, FilesAreThoseOfTheHost) {
  Rng rng = seeded("saves beside steps on the fake device", 243);
  fake::FakeBackend* backend = nullptr;
  DeviceAsyncSaves saves;
  saves.device = "fake";
  saves.make = [&](Rng& own, lowtide::Memory& memory) {
    memory.chunk_bytes = own.between(1, 4) * 4096;
    memory.managed = own.chance(0.15);
    if (!memory.managed && own.chance(0.85)) memory.device_bytes = own.between(1, 30) * 4096;
    memory.transfer = memory.managed ? "" : pick(own, std::vector<std::string>{"copy", "hybrid", "zero_copy"});
    fake::FakeBackendOptions options{own.next()};
    options.steps_pinned = true;
    options.guards = own.chance(0.5);
    auto made = std::make_unique<fake::FakeBackend>(options);
    backend = made.get();
    return made;
  };
  saves.after = [&](Twins&) { expect_no_race(*backend); };
  saves.run(rng, share_of(300));
}

}  // namespace
}  // namespace lowtide::testing
