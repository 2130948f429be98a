// Claims about a device that runs everything late, in any legal order, with state in host memory and on a disk: each
// link carries exactly the planned bytes; the host waits for all unfinished work of the device; a disk that refuses
// writes loses nothing; budgets that cannot be are refused. Bits: device_test.cpp; single faults:
// device_faults_test.cpp.

#include "core/buffer.h"
#include "core/error.h"
#include "support/fake_twins.h"
#include "support/faulty_env.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

lowtide::Memory pages(int64_t device, int64_t host) {
  return {.host = host * kPageBytes, .chunk = kPageBytes, .device = device * kPageBytes};
}

Config adamw(const char* state = "bf16") {
  Config setup{.state = state, .hyper = default_hyper("adamw"), .nonfinite = NonFinite::kPropagate};
  return setup;
}

TEST(DeviceDisk, EachLinkCarriesWhatIsPlanned) {
  Rng rng = seeded("traffic of three tiers", 372);
  int64_t link = 0, disk = 0, cases = 0;
  const int trials = std::max(10, share_of(100));
  for (int trial = 0; trial < trials; ++trial) {
    const int64_t device = rng.between(1, 20), host = rng.between(1, 20);
    Tiers one(rng, adamw("fp32"), pages(device, host));
    for (int64_t n = rng.between(1, 4); n > 0; --n) one.twins->add(DType::kF32, {rng.between(1, 20), 500});
    constexpr int kSteps = 3;
    for (int step = 0; step < kSteps; ++step) one.twins->step();
    const MemoryReport report = one.twins->on_device().report();
    if (report.disk_moved_per_step == 0) continue;  // without disk traffic, chunks are read ahead for the next step
    EXPECT_EQ(report.read_bytes + report.written_bytes, kSteps * report.moved_per_step);
    EXPECT_EQ(report.disk_read_bytes + report.disk_written_bytes, kSteps * report.disk_moved_per_step);
    link += report.moved_per_step, disk += report.disk_moved_per_step, ++cases;
  }
  EXPECT_GT(disk, 0);
  figure("{} plans: over the link {} bytes a step, over the disk's {}: moved / planned = 1 on both", cases, link, disk);
}

// Without any one of the host's waits, the file's transfers race with the device's, unless nothing was left to wait
// for.
TEST(DeviceDisk, TheHostWaitsForWhatItMust) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "without a wait the file's threads race with the device in earnest, which the sanitizer ends";
#endif
  Rng rng = seeded("host waits", 373);
  int64_t dropped = 0, raced = 0;
  for (int trial = 0; trial < 6; ++trial) {
    const uint64_t seed = rng.next();
    int64_t waits = 1;
    for (int64_t drop = -1; drop < waits; ++drop) {
      Rng own(seed);
      Tiers one(own, adamw(), pages(1 + trial % 3, 1 + trial % 4), {.drop_host_wait = drop});
      one.twins->add(DType::kF32, {3, 1500});
      one.twins->add(DType::kBF16, {2000});
      one.twins->on_device().place_states();
      const int64_t before = one.twins->fake.host_waits();
      int64_t after = 0, differing = -1;
      try {
        for (int step = 0; step < 2; ++step) one.twins->step();
        after = one.twins->fake.host_waits();
        differing = one.twins->differing();
      } catch (const Error& error) {  // a chunk was written or its checksum computed too early
        EXPECT_EQ(error.kind(), ErrorKind::kIo) << error.what();
        EXPECT_GE(drop, 0);
      }
      const bool found = differing != 0 || !one.twins->fake.fake().race_checker().races().empty();
      if (drop < 0) {
        EXPECT_FALSE(found) << "control";
        waits = after;
        continue;
      }
      if (drop < before) continue;  // this wait is outside of steps
      ++dropped;
      raced += found;
    }
  }
  EXPECT_GT(raced, 0);
  figure("{} waits of the host dropped in steps: {} raced, of the others 0 bytes differ", dropped, raced);
}

// Writes fail, once or from then on: the step is complete, and its error says what stays in RAM.
TEST(DeviceDisk, ADiskThatRefusesWritesLosesNothing) {
  Rng rng = seeded("refused writes behind a device", 374);
  int64_t refused = 0, kept = 0, compared = 0;
  for (const bool persistent : {false, true})
    for (const bool guards : {false, true})
      for (int64_t n = 1; n <= 12; ++n) {
        SCOPED_TRACE("write " + std::to_string(n) + (persistent ? " and all after" : ""));
        Config setup = adamw();
        if (guards) setup.nonfinite = NonFinite::kSkip;
        Tiers one(rng, setup, pages(3, 2 + n % 4), {.guards = guards});
        FakeTwins& twins = *one.twins;
        twins.add(DType::kF32, {5, 1500});
        twins.add(DType::kBF16, {4000});
        twins.step();
        one.env.arm({Call::kPwrite, n, persistent, ENOSPC});
        int64_t here = 0;
        for (int step = 0; step < 3; ++step) {
          try {
            twins.step();
          } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::kIo);
            EXPECT_EQ(error.os_error(), ENOSPC);
            EXPECT_NE(std::string(error.what()).find("nothing is lost"), std::string::npos) << error.what();
            ++here;
          }
          EXPECT_EQ(twins.on_device().report().steps, 2 + step);
          kept += twins.on_device().report().kept_bytes > 0;
          EXPECT_EQ(twins.differing(), 0) << "step " << step;
        }
        EXPECT_EQ(here > 0, one.env.struck() > 0);
        one.env.disarm();
        twins.step();
        EXPECT_EQ(twins.on_device().report().kept_bytes, 0);
        EXPECT_EQ(twins.differing(), 0);
        refused += here;
        compared += twins.compared();
        expect_no_race(twins.fake);
      }
  EXPECT_GT(refused, 40);
  EXPECT_GT(kept, 40);
  figure("{} steps told of a write that failed; differing bytes 0 of {}", refused, compared);
}

// A write and a device call fail in one step: the next step is an ordinary one and does not raise the error again.
TEST(DeviceDisk, AFailureIsToldOfOnce) {
  const TemporaryDirectory files;
  int64_t failed = 0, compared = 0;
  for (int64_t n = 1; n <= 60; n += 2) {
    SCOPED_TRACE(n);
    Rng rng(9300 + static_cast<uint64_t>(n));
    Tiers one(rng, adamw(), pages(3, 3));
    FakeTwins& twins = *one.twins;
    twins.add(DType::kF32, {5, 900});
    twins.add(DType::kF32, {4000});
    twins.step();
    one.env.arm({Call::kPwrite, 1 + n % 3, false, ENOSPC});
    twins.before_device_step = [&] { twins.fake.fake().fail_at(n); };
    try {
      twins.step();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kIo) << error.what();
      ++failed;
    }
    twins.before_device_step = nullptr;
    twins.fake.fake().fail_at(0);
    one.env.disarm();
    twins.restore(files.file("state"));
    for (int i = 0; i < 2; ++i) twins.step();
    EXPECT_EQ(twins.on_device().report().kept_bytes, 0);
    EXPECT_EQ(twins.differing(), 0);
    expect_no_race(twins.fake);
    compared += twins.compared();
  }
  EXPECT_GT(failed, 20);
  figure("{} of 30 steps failed twice over; the next ones did not, differing bytes 0 of {}", failed, compared);
}

TEST(DeviceDisk, BudgetsThatContradictAreRefused) {
  Rng rng = seeded("budgets that contradict", 376);
  struct Bad {
    lowtide::Memory memory;
    const char* says;
    bool with_disk = true;
  };
  const auto with = [](auto&& change) {
    lowtide::Memory memory{.host = 6 * kPageBytes, .chunk = 2 * kPageBytes, .device = 6 * kPageBytes};
    change(memory);
    return memory;
  };
  const Bad all[] = {
      {with([](auto& m) { m.automatic = true, m.device = -1; }), "automatic=1"},
      {with([](auto& m) { m.managed = true; }), "managed=1"},
      {with([](auto& m) { m.transfer = "hybrid"; }), "transfer='hybrid'"},
      {with([](auto& m) { m.host = -1; }), "without a limit of host memory"},
      {with([](auto& m) { m.host = kPageBytes; }), "at least 8192 bytes of host memory"},
      {with([](auto& m) { m.device = kPageBytes; }), "at least 8192 bytes of device memory"},
      {with([](auto& m) { m.disk_limit = kPageBytes; }), "bytes of disk"},
      {with([](auto& m) { m.device = kPageBytes, m.host = -1; }), "at least 8192 bytes of device memory", false},
      {with([](auto& m) { m.host = 2 * kPageBytes; }), "bytes of host memory", false},
      {with([](auto& m) { m.managed = true, m.host = -1; }), "managed memory must not exceed", false},
  };
  for (const Bad& bad : all)
    expect_refusal(
        [&] {
          Tiers one(rng, adamw("fp32"), bad.memory, {.steps_pinned = true}, bad.with_disk);
          one.twins->add(DType::kF32, {20, 1000});
          one.twins->step();
        },
        bad.says);
}

}  // namespace
}  // namespace lowtide::testing
