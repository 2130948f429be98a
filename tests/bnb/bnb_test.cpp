// liblowtide_bnb through its C functions, whichever memory serves them.
#include "lowtide/bnb.h"

#include "support/test.h"

extern "C" int lt_bnb_names_test(void);

namespace lowtide::testing {
namespace {

bool on_device() { return std::string(lt_bnb_place()).rfind("sycl: ", 0) == 0; }

TEST(Bnb, NamesAndParametersAreThoseOfPython) { EXPECT_EQ(lt_bnb_names_test(), 6) << lt_bnb_last_error(); }

TEST(Bnb, MemoryIsZeroAlignedAndTheHosts) {
  auto rng = seeded("bnb memory", 71);
  constexpr int kCases = 100;
  int64_t bytes = 0, nonzero = 0, unaligned = 0;
  std::vector<std::pair<unsigned char*, size_t>> held;
  for (int i = 0; i < kCases; ++i) {
    const auto size = static_cast<size_t>(i < 10 ? i + 1 : rng.between(1, 200000));
    auto* memory = static_cast<unsigned char*>(cget_managed_ptr(size));
    ASSERT_NE(memory, nullptr) << lt_bnb_last_error();
    unaligned += reinterpret_cast<uintptr_t>(memory) % 4096 != 0;
    for (size_t b = 0; b < size; ++b) nonzero += memory[b] != 0;
    std::memset(memory, 0xee, size);  // what is freed and had again must be zero all the same
    bytes += static_cast<int64_t>(size);
    held.emplace_back(memory, size);
    if (rng.chance(0.5)) {
      cfree_managed_ptr(held.back().first);
      held.pop_back();
    }
  }
  for (const auto& [memory, size] : held) cfree_managed_ptr(memory);
  cfree_managed_ptr(nullptr);
  figure("{}: {} allocations of {} bytes in all: {} bytes not zero, {} not aligned", lt_bnb_place(), kCases, bytes,
         nonzero, unaligned);
  EXPECT_EQ(nonzero, 0);
  EXPECT_EQ(unaligned, 0);
}

TEST(Bnb, FillsSetTheirElementsOnly) {
  auto rng = seeded("bnb fills", 72);
  constexpr int64_t kFloats = 100000;
  constexpr int kCases = 100;
  auto* memory = static_cast<float*>(cget_managed_ptr(kFloats * sizeof(float)));
  ASSERT_NE(memory, nullptr) << lt_bnb_last_error();
  std::vector<float> wanted(kFloats, 0.f);
  int64_t differing = 0, set = 0;
  for (int i = 0; i < kCases; ++i) {
    const bool bytes = rng.chance(0.5);
    const int64_t most = bytes ? kFloats * 4 : kFloats, begin = rng.below(most), n = rng.below(most - begin + 1);
    if (rng.chance(0.3)) cprefetch(memory, kFloats * sizeof(float), 0);
    if (bytes) {
      const auto value = static_cast<unsigned char>(rng.below(128));
      cfill_uint8(reinterpret_cast<unsigned char*>(memory) + begin, nullptr, value, n);
      std::memset(reinterpret_cast<unsigned char*>(wanted.data()) + begin, value, static_cast<size_t>(n));
    } else {
      const auto value = static_cast<float>(rng.normal());
      cfill_fp32(memory + begin, nullptr, value, n);
      std::fill_n(wanted.begin() + begin, n, value);
    }
    set += n;
    differing += std::memcmp(memory, wanted.data(), kFloats * sizeof(float)) != 0;
  }
  figure("{}: {} fills of {} elements: {} differ", lt_bnb_place(), kCases, set, differing);
  EXPECT_EQ(differing, 0);
  cfree_managed_ptr(memory);
}

// A failed call names itself and what it got, changes nothing, and later calls work.
TEST(Bnb, FailuresAreSaidAndChangeNothing) {
  auto* memory = static_cast<unsigned char*>(cget_managed_ptr(100));
  ASSERT_NE(memory, nullptr) << lt_bnb_last_error();
  cfill_uint8(memory, nullptr, 7, 100);
  int failures = 0;
  const auto expect = [&](const char* part) {
    EXPECT_NE(std::string(lt_bnb_last_error()).find(part), std::string::npos) << lt_bnb_last_error();
    ++failures;
  };
  EXPECT_EQ(cget_managed_ptr(0), nullptr);
  expect("cget_managed_ptr: got 0 bytes");
  EXPECT_EQ(cget_managed_ptr(size_t{1} << 60), nullptr);
  expect("1152921504606846976 bytes");
  EXPECT_EQ(cget_managed_ptr(~size_t{0}), nullptr);
  expect("cget_managed_ptr: got 18446744073709551615");
  unsigned char own[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  cfill_uint8(own, nullptr, 9, 8);
  expect("cfill_uint8: got 8 bytes at");
  cfill_uint8(memory + 1, nullptr, 9, 100);
  expect("cfill_uint8: got 100 bytes at");
  cfill_uint8(memory, nullptr, 9, -1);
  expect("got -1 elements");
  cfill_fp32(reinterpret_cast<float*>(memory), nullptr, 9, 26);
  expect("cfill_fp32: got 104 bytes at");
  cfill_fp32(reinterpret_cast<float*>(memory + 1), nullptr, 9, 2);
  expect("aligned to 4");
  cfill_fp32(nullptr, nullptr, 9, 1);
  expect("cfill_fp32: got 4 bytes at");
  cprefetch(own, 8, 0);
  expect("cprefetch: got 8 bytes at");
  cprefetch(memory, 101, 0);
  expect("cprefetch: got 101 bytes at");
  cprefetch(memory, 100, -2);
  expect("cprefetch: got device -2");
  if (on_device()) {
    cprefetch(memory, 100, 1000);
    expect(":1000");
  }
  cfree_managed_ptr(memory + 1);
  expect("cfree_managed_ptr: got ");
  cfree_managed_ptr(own);
  expect("cfree_managed_ptr: got ");
  for (int i = 0; i < 8; ++i) EXPECT_EQ(own[i], i + 1);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(memory[i], 7);
  std::thread([] { EXPECT_STREQ(lt_bnb_last_error(), ""); }).join();
  cfree_managed_ptr(memory);
  const std::string before = lt_bnb_last_error();
  cfree_managed_ptr(memory);
  expect("cfree_managed_ptr: got ");
  void* again = cget_managed_ptr(100);
  EXPECT_NE(again, nullptr);
  cfree_managed_ptr(again);
  figure("{}: {} failures, each said", lt_bnb_place(), failures);
}

TEST(Bnb, ThreadsShareIt) {
  constexpr int kThreads = 4, kRounds = 50;
  constexpr long kBytes = 5000;
  std::atomic<int64_t> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) {
        auto* memory = static_cast<unsigned char*>(cget_managed_ptr(kBytes));
        const auto value = static_cast<unsigned char>(t * kRounds + i);
        cfill_uint8(memory, nullptr, value, kBytes);
        for (long b = 0; b < kBytes; ++b) wrong += memory[b] != value;
        cfree_managed_ptr(memory);
      }
    });
  for (std::thread& thread : threads) thread.join();
  figure("{}: {} threads, {} rounds each, {} bytes wrong", lt_bnb_place(), kThreads, kRounds, wrong);
  EXPECT_EQ(wrong, 0);
}

TEST(BnbOnDevice, IsServedBySycl) {
  if (!on_device()) GTEST_SKIP() << lt_bnb_place();
  figure("{}", lt_bnb_place());
}

TEST(BnbWithoutDevice, TheHostServesAndTheReasonIsSaid) {
  ASSERT_NE(getenv("ONEAPI_DEVICE_SELECTOR"), nullptr) << "to be run with a selector that no device fits";
  if (on_device()) GTEST_SKIP() << lt_bnb_place();
  EXPECT_EQ(std::string(lt_bnb_place()).rfind("host: ", 0), 0u);
  EXPECT_GT(std::strlen(lt_bnb_place()), 20u);
  figure("{}", lt_bnb_place());
}

}  // namespace
}  // namespace lowtide::testing
