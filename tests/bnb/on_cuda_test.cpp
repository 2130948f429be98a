// The library on CUDA, whose runtime is emulated: paged memory is CUDA's managed memory, and a call waits twice.
#include "backend/registry.h"
#include "bnb/memory.h"
#include "core/error.h"
#include "cuda_emulator.h"
#include "shared_copy.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

class BnbOnCuda : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { setenv("LOWTIDE_CUDA_PLUGIN", LT_CUDA_EMULATED, 1); }
  void TearDown() override {
    const auto found = cuda_emulator::take_misuses();
    EXPECT_TRUE(found.empty()) << found[0];
  }
};

class RestoredSettings {
 public:
  RestoredSettings() = default;
  ~RestoredSettings() { cuda_emulator::change(before_); }
  RestoredSettings(const RestoredSettings&) = delete;
  RestoredSettings& operator=(const RestoredSettings&) = delete;

 private:
  cuda_emulator::Settings before_ = cuda_emulator::settings();
};

TEST_F(BnbOnCuda, PagedMemoryIsManaged) {
  EXPECT_EQ(std::string(lt_bnb_place()).rfind("cuda: ", 0), 0u) << lt_bnb_place();
  const int64_t before = cuda_emulator::held().managed_bytes;
  auto* const memory = static_cast<unsigned char*>(cget_managed_ptr(10000));
  ASSERT_NE(memory, nullptr) << lt_bnb_last_error();
  EXPECT_GE(cuda_emulator::held().managed_bytes - before, 10000);
  cudaPointerAttributes seen;
  ASSERT_EQ(cudaPointerGetAttributes(&seen, memory), cudaSuccess);
  EXPECT_EQ(seen.type, cudaMemoryTypeManaged);
  EXPECT_EQ(std::count(memory, memory + 10000, 0), 10000);
  cprefetch(memory, 10000, 0);
  EXPECT_STREQ(lt_bnb_last_error(), "");
  cfree_managed_ptr(memory);
  EXPECT_EQ(cuda_emulator::held().managed_bytes, before);
}

// Without concurrentManagedAccess, managed memory would move as a whole before each kernel.
TEST_F(BnbOnCuda, PagedMemoryIsTheHostsWhereManagedMemoryIsNotPaged) {
  static constexpr bnb::OpenDevice* kCuda[] = {[](int number) { return open_backend("cuda", format(":%d", number)); }};
  const RestoredSettings restored;
  struct Place {
    bool managed, reaches;
    const char *begin, *part;
    cudaMemoryType type;
  };
  for (const Place& wanted : {Place{true, true, "cuda: ", "", cudaMemoryTypeManaged},
                              {false, true, "cuda: ", "in pinned host memory", cudaMemoryTypeHost},
                              {false, false, "host: ", "do not reach pinned memory", cudaMemoryTypeUnregistered}}) {
    cuda_emulator::Settings settings = cuda_emulator::settings();
    settings.managed = wanted.managed, settings.reaches = wanted.reaches;
    cuda_emulator::change(settings);
    bnb::Memory memory(kCuda);
    EXPECT_EQ(memory.place().rfind(wanted.begin, 0), 0u) << memory.place();
    expect_in(wanted.part, memory.place());
    auto* const data = static_cast<unsigned char*>(memory.allocate(10000));
    cudaPointerAttributes seen;
    EXPECT_EQ(cudaPointerGetAttributes(&seen, data), cudaSuccess);
    EXPECT_EQ(seen.type, wanted.type);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 4096, 0u);
    EXPECT_EQ(std::count(data, data + 10000, 0), 10000);
    memory.fill(data, 0x3f800000, 4, 2500);
    EXPECT_EQ(reinterpret_cast<float*>(data)[2499], 1.0f);
    memory.prefetch(data, 10000, 0);
    memory.prefetch(data, 10000, -1);
    memory.free(data);
    std::printf("concurrentManagedAccess %d, canUseHostPointerForRegisteredMem %d: %s\n", wanted.managed,
                wanted.reaches, memory.place().c_str());
  }
}

// For the maps, the scales and the search together, and for the step; and no copy passes through pageable memory, where
// the runtime would wait for each.
TEST_F(BnbOnCuda, ACallWaitsTwice) {
  auto rng = seeded("bnb on cuda", 805);
  int64_t calls = 0, differing = 0, most = 0, staged = 0;
  for (const BnbSymbol& symbol : bnb_symbols()) {
    BnbCase c(symbol, 3000);
    if (c.u.states() == 1 && c.u.is_second_moment(0)) c.maps[0] = c.maps[1];  // as the device has it
    c.set_random_parameter(rng);
    c.set_random_gradient(rng);
    SharedCopy shared(c);
    for (c.u.step = 1; c.u.step <= 3; ++c.u.step, ++calls) {
      ASSERT_EQ(lt_bnb_use_backend("cuda", nullptr, nullptr), 0) << lt_bnb_last_error();
      lt_bnb_clear_error();
      symbol.call(shared.update());
      EXPECT_STREQ(lt_bnb_last_error(), "") << symbol.name;
      ASSERT_EQ(lt_bnb_use_backend("cpu", nullptr, nullptr), 0);
      symbol.call(c.u);
      differing += shared.bytes() != c.bytes();
    }
    ASSERT_EQ(lt_bnb_use_backend("cuda", nullptr, nullptr), 0);
    symbol.call(shared.update());  // takes memory
    const auto before = cuda_emulator::counters();
    symbol.call(shared.update());
    const auto after = cuda_emulator::counters();
    EXPECT_STREQ(lt_bnb_last_error(), "") << symbol.name;
    most = std::max(most, after.synchronizing - before.synchronizing);
    staged += after.staged - before.staged;
  }
  ASSERT_EQ(lt_bnb_use_backend("cpu", nullptr, nullptr), 0);
  std::printf("%lld calls: %lld differ; a call waits %lld times at most, %lld copies of pageable memory\n",
              static_cast<long long>(calls), static_cast<long long>(differing), static_cast<long long>(most),
              static_cast<long long>(staged));
  EXPECT_EQ(differing, 0);
  EXPECT_LE(most, 2);
  EXPECT_EQ(staged, 0);
}

// The search refuses a gradient in pageable memory when the maps and scales are being copied already. The memory that
// they are copied to is freed by a larger call, and by another backend.
TEST_F(BnbOnCuda, ARefusedCallLeavesNoCopyUnderWay) {
  auto rng = seeded("bnb refused on cuda", 806);
  for (const BnbSymbol& symbol : bnb_symbols()) {
    if (!symbol.coded) continue;
    ASSERT_EQ(lt_bnb_use_backend("cuda", nullptr, nullptr), 0) << lt_bnb_last_error();
    for (const int64_t n : {3000, 30000}) {
      BnbCase c(symbol, n);
      c.set_random_parameter(rng);
      c.set_random_gradient(rng);
      SharedCopy shared(c);
      bnb::Update refused = shared.update();
      refused.g = c.u.g;
      lt_bnb_clear_error();
      symbol.call(refused);
      EXPECT_NE(std::string(lt_bnb_last_error()), "") << symbol.name;
      EXPECT_EQ(cuda_emulator::held().pending, 0) << symbol.name;
    }
    ASSERT_EQ(lt_bnb_use_backend("cpu", nullptr, nullptr), 0);
  }
}

}  // namespace
}  // namespace lowtide::testing
