// A parameter of more than 2^31 elements: every index must be 64 bits wide. Needs 6.5 GiB; says so where there is less.
#include <sys/mman.h>

#include "support/optimizer_case.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string name, unit; file >> name;) {
    int64_t kib = 0;
    file >> kib;
    std::getline(file, unit);
    if (name == "MemAvailable:") return kib * 1024;
  }
  return 0;
}

TEST(LargeTensor, IsSteppedToItsLastElement) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need several times the 6.5 GiB of this test";
#endif
  constexpr int64_t kNumel = (int64_t{1} << 31) + 4097;
  constexpr int64_t kWanted = int64_t{10} << 30;
  const int64_t available = available_memory();
  if (available < kWanted) {
    GTEST_SKIP() << "needs 10 GiB of free memory for a parameter of 2^31 + 4097 elements, this machine has "
                 << (available >> 20) << " MiB";
  }
  void* memory = mmap(nullptr, kNumel * 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  madvise(memory, kNumel * 2, MADV_HUGEPAGE);
  auto* p = static_cast<uint16_t*>(memory);
  const uint16_t g = bf16_nearest(2.0);
  const int64_t no_stride = 0;
  Config setup{.rule = "lion", .threads = 2};
  setup.hyper.lr = 0.5;
  setup.hyper.beta2 = 0.5;
  Optimizer optimizer = make_optimizer(setup);
  optimizer.add_param(0, {p, DType::kBF16, {kNumel}, {}});
  const Gradient gradient{&g, DType::kBF16, &no_stride};  // one element, seen 2^31 + 4097 times
  ASSERT_TRUE(optimizer.step({&gradient, 1}).applied);

  // p = 0 - 0.5 sign(2) = -0.5 everywhere, m = 0.5 * 2 = 1 = code 255 at scale 1.
  const uint16_t wanted = bf16_nearest(-0.5);
  int64_t wrong = 0;
  for (int64_t i = 0; i < kNumel; ++i) wrong += p[i] != wanted;
  EXPECT_EQ(wrong, 0);
  const std::vector<StateView> states = optimizer.state(0);
  ASSERT_EQ(states.size(), 1u);
  EXPECT_EQ(states[0].numel, kNumel);
  EXPECT_EQ(states[0].scales_per_row, (kNumel + 255) / 256);
  const auto* codes = static_cast<const uint8_t*>(states[0].codes);
  int64_t wrong_codes = 0;
  for (int64_t i = 0; i < kNumel; ++i) wrong_codes += codes[i] != 255;
  EXPECT_EQ(wrong_codes, 0);
  EXPECT_EQ(states[0].scales[states[0].scales_per_row - 1], 1.f);
  EXPECT_EQ(p[kNumel - 1], wanted);
  EXPECT_EQ(optimizer.report().state_bytes, kNumel + 4 * ((kNumel + 255) / 256));
  figure("{} elements stepped, {} wrong; last one {}", kNumel, wrong, bf16_value(p[kNumel - 1]));
  munmap(memory, kNumel * 2);
}

}  // namespace
}  // namespace lowtide::testing
