// Claim: a save beside steps on a device writes the same file as the host's twin at the same step.
#include "device/delayed_device.h"
#include "device/device_support.h"
#include "support/device_async_saves.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

TEST(DeviceAsyncSave, FilesAreThoseOfTheHost) {
  LT_NEEDS_DEVICE();
  Rng rng = seeded("saves beside steps on a device", 84);
  int number = 0;
  DeviceAsyncSaves saves;
  saves.device = TestDevice::get().name.c_str();
  saves.make = [&](Rng& own, lowtide::Memory& memory) -> std::unique_ptr<Backend> {
    memory.chunk = own.between(1, 4) * 4096;
    memory.managed = own.chance(0.2);
    if (!memory.managed && own.chance(0.85)) memory.device = own.between(5, 30) * 4096;
    std::unique_ptr<Backend> backend = TestDevice::get().open();
    if (++number % 2) return backend;
    return std::make_unique<DelayedDevice>(std::move(backend), own.next());
  };
  saves.run(rng, share_of(250));
}

}  // namespace
}  // namespace lowtide::testing
