// Tests the choice of a transfer mode, its measurement on the fake device, and the file that remembers it.
#include "memory/transfer_mode.h"

#include "support/fake/fake_backend.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr char kKey[] = "cuda; a device, driver 1; host";
constexpr TransferRates kRates{50e9, 52e9, 40e9, 41.5e9, 30e9};

fake::FakeBackendOptions pinned(std::string description = "") {
  fake::FakeBackendOptions options{.seed = 7, .steps_pinned = true, .description = std::move(description)};
  return options;
}

TEST(TransferModeProbe, ChoosesTheFastestAndCopiesWhereItMakesNoDifference) {
  EXPECT_EQ(choose_transfer_mode({1, 1, 40, 30, 20}), TransferMode::kCopy);
  EXPECT_EQ(choose_transfer_mode({1, 1, 40, 41, 41}), TransferMode::kCopy);
  EXPECT_EQ(choose_transfer_mode({1, 1, 40, 50, 45}), TransferMode::kHybrid);
  EXPECT_EQ(choose_transfer_mode({1, 1, 40, 45, 50}), TransferMode::kZeroCopy);
  EXPECT_EQ(choose_transfer_mode({1, 1, 40, 50, 50}), TransferMode::kZeroCopy);
  Rng rng = seeded("TransferModeProbe.Chooses", 131);
  for (int i = 0; i < 1000; ++i) {
    const double rates[] = {1 + rng.uniform(), 1 + rng.uniform(), 1 + rng.uniform()};
    const TransferMode mode = choose_transfer_mode({1, 1, rates[0], rates[1], rates[2]});
    ASSERT_GE(rates[static_cast<int>(mode)] * 1.05, *std::max_element(rates, rates + 3));
  }
  figure("1000 choices within 5 % of the fastest");
}

TEST(TransferModeProbe, MeasuresEveryTransferModeWithoutARace) {
  fake::FakeBackend backend(pinned());
  const int64_t used = backend.used();
  const TransferRates rates = measure_transfer_rates(backend, 1 << 20);
  for (const double rate : {rates.in, rates.out, rates.copy, rates.hybrid, rates.zero_copy}) {
    EXPECT_GT(rate, 0);
    EXPECT_TRUE(std::isfinite(rate));
  }
  EXPECT_EQ(backend.used(), used);
  for (const auto& race : backend.fake().race_checker().races()) ADD_FAILURE() << to_string(race);
}

TEST(TransferModeProbe, RemembersWhatWasMeasured) {
  const TemporaryDirectory directory;
  const std::string cache = directory.file("deep/cache");
  Env& env = system_env();
  EXPECT_FALSE(remembered_transfer_rates(env, cache, kKey));
  remember_transfer_rates(env, cache, kKey, kRates);
  const std::optional<TransferRates> found = remembered_transfer_rates(env, cache, kKey);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->copy, kRates.copy);
  EXPECT_EQ(found->zero_copy, kRates.zero_copy);
  EXPECT_FALSE(remembered_transfer_rates(env, cache, "another key"));
  // Reading a truncated file, or a file with one byte changed, gives the measured rates or nothing.
  const std::filesystem::path file = std::filesystem::directory_iterator(cache)->path();
  std::ifstream in(file);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  int broken = 0;
  const auto put = [&](const std::string& content) {
    std::ofstream(file, std::ios::trunc) << content;
    const std::optional<TransferRates> got = remembered_transfer_rates(env, cache, kKey);
    if (!got) ++broken;
    if (got) {
      EXPECT_TRUE(std::isfinite(got->copy) && got->copy > 0);
    }
  };
  for (size_t n = 0; n < text.size(); ++n) {
    put(text.substr(0, n));
    EXPECT_FALSE(remembered_transfer_rates(env, cache, kKey)) << n;
    for (const char c : {'\0', 'x', '-', '\n'}) {
      std::string changed = text;
      changed[n] = c;
      put(changed);
    }
  }
  EXPECT_GT(broken, static_cast<int>(text.size()));
  remember_transfer_rates(env, cache, kKey, kRates);  // repairs the file
  EXPECT_TRUE(remembered_transfer_rates(env, cache, kKey));
  // Concurrent writers leave the whole file of one of them and nothing else.
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int n = 0; n < 50; ++n) {
        remember_transfer_rates(env, cache, kKey, kRates);
        EXPECT_TRUE(remembered_transfer_rates(env, cache, kKey));
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(cache), {}), 1);
  figure("{} files cut short or changed: {} of them nothing, none an error", text.size() * 5, broken);
}

TEST(TransferModeProbe, WhatCannotBeWrittenIsNoError) {
  const TemporaryDirectory directory;
  const std::string file = directory.file("file");
  std::ofstream(file) << "in the way";
  remember_transfer_rates(system_env(), file + "/below", kKey, kRates);
  EXPECT_FALSE(remembered_transfer_rates(system_env(), file + "/below", kKey));
  struct Full final : Env {
    int64_t pwrite(int, const void*, int64_t, int64_t) override { return -ENOSPC; }
  } full;
  remember_transfer_rates(full, directory.file("cache"), kKey, kRates);
  EXPECT_TRUE(std::filesystem::is_empty(directory.file("cache")));
}

// Each kind of device is measured once; a device that cannot be identified is not remembered.
TEST(TransferModeProbe, MeasuresOnce) {
  const TemporaryDirectory directory;
  ::setenv("XDG_CACHE_HOME", directory.path().c_str(), 1);
  EXPECT_EQ(cache_directory(), directory.path() + "/lowtide");
  int64_t queues[3];
  for (int i = 0; i < 3; ++i) {
    fake::FakeBackend backend(pinned(i < 2 ? "a device" : ""));
    fastest_transfer_mode(system_env(), backend, 1 << 20);
    queues[i] = backend.queues();
  }
  EXPECT_GT(queues[0], 0);
  EXPECT_EQ(queues[1], 0) << "remembered";
  EXPECT_GT(queues[2], 0) << "no name: measured again";
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path() + "/lowtide"), {}), 1);
  fake::FakeBackendOptions small = pinned("a smaller device");
  small.device_bytes = 1 << 20;
  fake::FakeBackend backend(small);
  EXPECT_EQ(fastest_transfer_mode(system_env(), backend), TransferMode::kCopy);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path() + "/lowtide"), {}), 1);
  ::setenv("XDG_CACHE_HOME", "relative", 1);
  ::setenv("HOME", "/somewhere", 1);
  EXPECT_EQ(cache_directory(), "/somewhere/.cache/lowtide");
  ::unsetenv("XDG_CACHE_HOME");
}

}  // namespace
}  // namespace lowtide::testing
