// Every optimizer symbol on the SYCL device, where there is one.
#include "shared_copy.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

// On the SYCL device, in memory of cget_managed_ptr: what its kernels do, and with skip_zeros what goes through the
// host.
TEST(BnbOnDevice, StepsHaveTheBitsOfTheHost) {
  if (lt_bnb_use_backend("sycl", nullptr, nullptr) != 0) GTEST_SKIP() << lt_bnb_last_error();
  auto rng = seeded("bnb on a device", 804);
  int steps = 0, differing = 0;
  int64_t grid = 0;
  std::set<bnb::Family> families;
  for (const BnbSymbol& symbol : bnb_symbols()) {
    for (const bool skip_zeros : {false, true}) {
      // Some runtimes compile a kernel for seconds when it first runs: every share has one symbol of each family there,
      // of floats and of codes in turn.
      const bool wanted = !skip_zeros && symbol.coded == (static_cast<int>(symbol.family) % 2 == 1);
      const bool always = wanted && families.insert(symbol.family).second;
      if (!in_share(grid++) && !always) continue;
      BnbCase c(symbol, 3000);
      c.u.skip_zeros = skip_zeros;
      c.set_random_parameter(rng);
      c.set_random_gradient(rng);
      SharedCopy shared(c);
      for (c.u.step = 1; c.u.step <= 2; ++c.u.step, ++steps) {
        lt_bnb_clear_error();
        EXPECT_EQ(lt_bnb_use_backend("sycl", nullptr, nullptr), 0) << lt_bnb_last_error();
        symbol.call(shared.update());
        EXPECT_EQ(lt_bnb_use_backend("cpu", nullptr, nullptr), 0) << lt_bnb_last_error();
        symbol.call(c.u);
        EXPECT_STREQ(lt_bnb_last_error(), "") << symbol.name;
        differing += shared.bytes() != c.bytes();
      }
    }
  }
  lt_bnb_use_backend("cpu", nullptr, nullptr);
  figure("{} steps on the device: {} differ", steps, differing);
  EXPECT_EQ(differing, 0);
  EXPECT_EQ(families.size(), 6u);
}

}  // namespace
}  // namespace lowtide::testing
