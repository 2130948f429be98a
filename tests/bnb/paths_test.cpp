// The ways a step can go: with states as floats for any map, through a backend's own step, on a device, through the
// host for a device. All give the same bits.
#include "support/fake/fake_backend.h"
#include "backend/registry.h"
#include "bnb/update.h"
#include "core/error.h"
#include "support/test.h"
#include "symbols.h"

namespace lowtide::testing {
namespace {

// Sets a case's options, at random or plain enough for a backend's step.
void set_options(BnbCase& c, Rng& rng, bool plain) {
  c.set_random_parameter(rng);
  if (rng.chance(0.5)) c.u.weight_decay = 0;
  if (rng.chance(0.5)) c.u.gnorm_scale = 0.37f;
  if (plain) {
    if (c.u.states() == 1 && c.u.is_second_moment(0)) c.maps[0] = c.maps[1];  // as dynamic8 has it
    return;
  }
  c.u.skip_zeros = rng.chance(0.5);
  if (!c.u.coded && rng.chance(0.5)) c.u.max_unorm = 0.5f, c.u.param_norm = 0.5f;
  if (rng.chance(0.5)) c.maps[0][200] *= 1 - 0x1p-24f;
}

TEST(BnbPaths, StatesAsFloatsHaveTheBackendsBits) {
  int cases = 0, differing = 0;
  int64_t grid = 0, bytes = 0;
  const std::vector<std::string> targets = open_backend("cpu", "")->targets();
  for (int64_t i = 0; i < std::ssize(targets); ++i) {
    const std::string& target = targets[static_cast<size_t>(i)];
    auto rng = seeded(("bnb paths, " + target).c_str(), 811);
    const auto cpu = open_backend("cpu", target);
    int64_t number = 0;
    for (const BnbSymbol& symbol : bnb_symbols()) {
      // Every share has a case of each symbol, a short one.
      const bool always = in_share(number++, i, std::ssize(targets));
      for (const int64_t n : {1, 300, 70000}) {
        if (!in_share(grid++) && !(always && n == 300)) continue;
        BnbCase a(symbol, n), b(symbol, n);
        auto again = rng;
        set_options(a, rng, true);
        set_options(b, again, true);
        ASSERT_TRUE(bnb::fits_backend(a.u)) << symbol.name;
        for (int step = 1; step <= 3; ++step, ++cases) {
          a.u.step = b.u.step = step;
          a.set_random_gradient(rng);
          b.arrays[1] = a.arrays[1];
          bnb::step_on_host(a.u, *cpu, 2);
          bnb::step_floats(b.u, bnb::args_of(b.u, 1), *cpu, 1);
          differing += a.bytes() != b.bytes();
          bytes += static_cast<int64_t>(a.bytes().size());
        }
      }
    }
  }
  figure("{} steps, {} bytes: {} steps differ", cases, bytes, differing);
  EXPECT_EQ(differing, 0);
}

TEST(BnbPaths, ThreadsChangeNothing) {
  auto rng = seeded("bnb threads", 812);
  const auto cpu = open_backend("cpu", "");
  int cases = 0, differing = 0;
  for (const BnbSymbol& symbol : bnb_symbols()) {
    BnbCase a(symbol, 50000), b(symbol, 50000);
    auto again = rng;
    set_options(a, rng, false);
    set_options(b, again, false);
    a.set_random_gradient(rng);
    b.arrays[1] = a.arrays[1];
    bnb::step_on_host(a.u, *cpu, 1);
    bnb::step_on_host(b.u, *cpu, 3);
    differing += a.bytes() != b.bytes();
    ++cases;
  }
  figure("{} steps by 1 and by 3 threads: {} differ", cases, differing);
  EXPECT_EQ(differing, 0);
}

struct DeviceMemory {
  std::deque<DeviceBytes> memory;
};

// A case in memory of a device.
class OnDevice : DeviceMemory, public MovedCase {
 public:
  OnDevice(BnbCase& c, fake::FakeBackend& device)
      : MovedCase(c,
                  [&](size_t bytes) {
                    return memory.emplace_back(device, MemoryKind::kDevice, static_cast<int64_t>(bytes)).data();
                  }),
        device_(device) {}

  void copy(bool to_device) {
    for (const Part& part : parts())
      device_.copy(nullptr, to_device ? part.there : part.here, to_device ? part.here : part.there,
                   static_cast<int64_t>(part.bytes));
    device_.host_wait(device_.record(nullptr));
  }

 private:
  fake::FakeBackend& device_;
};

TEST(BnbPaths, ADeviceHasTheBitsOfTheHost) {
  const auto cpu = open_backend("cpu", "");
  int cases = 0, differing = 0, direct = 0, refused = 0;
  for (const bool plain : {true, false}) {
    auto rng = seeded("bnb device", 813);
    for (const BnbSymbol& symbol : bnb_symbols()) {
      for (const int64_t n : {0, 1, 300, 2000}) {
        fake::FakeBackend device({.seed = rng.next()});
        DeviceBytes pinned;
        BnbCase host(symbol, n), there(symbol, n);
        auto again = rng;
        set_options(host, rng, plain);
        set_options(there, again, plain);
        direct += bnb::fits_backend(host.u) && !host.u.is_limited();
        for (int step = 1; step <= 2; ++step, ++cases) {
          host.u.step = there.u.step = step;
          host.set_random_gradient(rng);
          there.arrays[1] = host.arrays[1];
          OnDevice on(there, device);
          on.copy(true);
          bnb::step_on_host(host.u, *cpu, 1);
          bnb::step_on_device(on.update(), device, nullptr, pinned, *cpu, 1);
          on.copy(false);
          differing += host.bytes() != there.bytes();
          if (n == 0) continue;
          // A refused call changes nothing.
          set_element(there.u.dtype, reinterpret_cast<std::byte*>(there.arrays[1].data()), n - 1, INFINITY);
          on.copy(true);
          EXPECT_THROW(bnb::step_on_device(on.update(), device, nullptr, pinned, *cpu, 1), Error) << symbol.name;
          on.copy(false);
          there.arrays[1] = host.arrays[1];
          differing += host.bytes() != there.bytes();
          ++refused;
        }
      }
    }
  }
  figure(
      "{} steps on the fake device, {} parameters stepped there and the others through the host, {} refused: {} differ",
      cases, direct, refused, differing);
  EXPECT_EQ(differing, 0);
}

}  // namespace
}  // namespace lowtide::testing
