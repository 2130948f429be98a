// Claims about a device that runs everything late, in any legal order, with state in host memory and on a disk: results
// have the bits of an optimizer in host memory; no budget is exceeded; each link carries exactly the planned bytes; the
// host waits for all unfinished work of the device; a disk that refuses writes loses nothing; any call to the device,
// to the disk and for memory may fail.

#include "core/buffer.h"
#include "core/error.h"
#include "support/fake_twins.h"
#include "support/faulty_env.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

using fake::FakeBackend;

// Transfers all files by pread and pwrite, and checks them for races with the device's queued work.
class WatchedEnv final : public FaultyEnv {
 public:
  FakeBackend* backend = nullptr;
  int64_t pread(int fd, void* to, int64_t bytes, int64_t offset) override {
    if (backend) backend->host_touches(to, bytes, true);
    return FaultyEnv::pread(fd, to, bytes, offset);
  }
  int64_t pwrite(int fd, const void* from, int64_t bytes, int64_t offset) override {
    if (backend) backend->host_touches(from, bytes, false);
    return FaultyEnv::pwrite(fd, from, bytes, offset);
  }
};

struct ThreeTiers {
  ThreeTiers(Rng& rng, const Config& setup, lowtide::Memory memory, fake::FakeBackendOptions options = {}) {
    options.seed = rng.next();
    memory.disk = disk.path();
    twins.emplace(rng, setup, memory, options, env);
    env.backend = &twins->fake;
  }

  TemporaryDirectory disk;
  WatchedEnv env;
  std::optional<FakeTwins> twins;
};

lowtide::Memory pages(int64_t device, int64_t host) {
  return {.host = host * kPageBytes, .chunk = kPageBytes, .device = device * kPageBytes};
}

Config adamw(const char* state = "bf16") {
  Config setup{.state = state, .hyper = default_hyper("adamw"), .nonfinite = NonFinite::kPropagate};
  return setup;
}

TEST(DeviceDisk, EveryBudgetGivesTheBitsOfTheHost) {
  Rng rng = seeded("device, host and disk", 371);
  int64_t compared = 0, steps = 0, plans = 0, on_disk = 0, refused = 0, above = 0, moved = 0, offloaded = 0;
  const int trials = std::max(20, share_of(360));
  for (int trial = 0; trial < trials; ++trial) {
    const Config setup = random_setup(rng);
    lowtide::Memory memory{.chunk = rng.between(1, 4) * kPageBytes};
    memory.device = rng.between(1, 10) * memory.chunk;
    memory.host = rng.between(1, 10) * memory.chunk;
    if (rng.chance(0.2)) memory.disk_limit = rng.between(0, 60) * memory.chunk;
    ThreeTiers one(rng, setup, memory, {.steps_pinned = true, .guards = rng.chance(0.5)});
    FakeTwins& twins = *one.twins;
    for (int64_t n = rng.between(1, 6); n > 0; --n)
      twins.add(pick(rng, std::vector{DType::kF32, DType::kBF16, DType::kF16}), random_sizes(rng));
    const bool some = rng.chance(0.3);
    bool replanned = false;
    try {
      for (int step = 0; step < 8; ++step) {
        const bool ahead =
            rng.chance(0.1) && twins.on_device().prefetch(rng.between(0, 8) * kPageBytes, twins.queue()) > 0;
        if (rng.chance(0.1)) {
          const int64_t freed = twins.on_device().demote(rng.between(0, 10) * kPageBytes);
          moved += freed > 0;
          replanned = true;
        }
        twins.step(some ? 0.5 : 1);
        if (ahead) twins.on_device().synchronize();  // gives back the borrowed memory
        const MemoryReport report = twins.on_device().report();
        above += report.device_bytes > memory.device && !replanned;
        above += report.allocated_bytes > memory.host && !replanned;
        if (rng.chance(0.2)) {
          EXPECT_EQ(twins.differing(), 0) << "trial " << trial;
        }
        if (rng.chance(0.1)) {
          EXPECT_EQ(twins.differing(), 0) << "trial " << trial;  // from here on all parameters have state
          twins.on_device().offload();
          EXPECT_EQ(twins.differing(), 0) << "trial " << trial << ": read where it is";
          EXPECT_EQ(twins.on_device().report().device_bytes, 0);
          EXPECT_LE(twins.on_device().report().allocated_bytes, memory.host);
          ++offloaded;
          if (rng.chance(0.5)) twins.on_device().onload();
        }
        if (rng.chance(0.1)) twins.add(DType::kF32, random_sizes(rng));
      }
      twins.on_device().place_states();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << error.what();
      EXPECT_NE(std::string(error.what()).find("budget"), std::string::npos) << error.what();
      ++refused;
      continue;
    }
    EXPECT_EQ(twins.differing(), 0) << "trial " << trial << " " << setup.rule << " " << setup.state;
    const MemoryReport report = twins.on_device().report();
    on_disk += report.disk_moved_per_step > 0;
    EXPECT_EQ(report.kept_bytes, 0);
    expect_no_race(twins.fake);
    ++plans;
    compared += twins.compared();
    steps += twins.steps();
  }
  EXPECT_EQ(above, 0);
  const auto all = static_cast<double>(plans);  // three in ten of many plans have chunks on disk: less four deviations
  EXPECT_GT(static_cast<double>(on_disk), 0.3 * all - 4 * std::sqrt(0.3 * 0.7 * all));
  figure(
      "{} plans ({} with chunks on disk, {} more refused), {} steps, {} demotions, {} offloaded: differing bytes 0 of "
      "{}, above a budget {}",
      plans, on_disk, refused, steps, moved, offloaded, compared, above);
}

TEST(DeviceDisk, EachLinkCarriesWhatIsPlanned) {
  Rng rng = seeded("traffic of three tiers", 372);
  int64_t link = 0, disk = 0, cases = 0;
  const int trials = std::max(10, share_of(100));
  for (int trial = 0; trial < trials; ++trial) {
    const int64_t device = rng.between(1, 20), host = rng.between(1, 20);
    ThreeTiers one(rng, adamw("fp32"), pages(device, host));
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
      ThreeTiers one(own, adamw(), pages(1 + trial % 3, 1 + trial % 4), {.drop_host_wait = drop});
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
        ThreeTiers one(rng, setup, pages(3, 2 + n % 4), {.guards = guards});
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

// Fails the n-th device call, read, write and host allocation, for every n. State that must survive does, the optimizer
// works on, and loading repairs a stopped step.
TEST(DeviceDisk, AnyCallMayFail) {
  const TemporaryDirectory files;
  int64_t compared = 0;
  enum class At { kStep, kAdd, kOffload, kOnload };
  const char* const names[] = {"step", "add", "offload", "onload"};
  for (const At at : {At::kStep, At::kAdd, At::kOffload, At::kOnload})
    for (const Call call : {Call::kAny, Call::kPread, Call::kPwrite, Call::kMap}) {
      int64_t faults = 0, wholes = 0, runs = 0;
      const int64_t every = call == Call::kAny && at == At::kStep ? spread() : 1;
      for (int64_t n = 1, silent = 0; silent < 12; n += every, ++runs) {
        SCOPED_TRACE(std::string(names[static_cast<int>(at)]) + ", call " + std::to_string(n) + " of kind " +
                     std::to_string(static_cast<int>(call)));
        Rng rng(9100 + static_cast<uint64_t>(n));
        ThreeTiers one(rng, adamw(), pages(n % 2 ? 3 : 5, n % 3 ? 4 : 2));
        FakeTwins& twins = *one.twins;
        twins.add(DType::kF32, {5, 900});
        twins.add(DType::kF32, {4000});
        for (int i = 0; i < 2; ++i) twins.step();
        if (at == At::kOnload) twins.on_device().offload();
        if (at == At::kAdd) twins.add(DType::kF32, {3000});
        const auto arm = [&] {
          if (call == Call::kAny)
            twins.fake.fake().fail_at(n);
          else
            one.env.arm({call, n, false, EIO});
        };
        if (at == At::kStep)
          twins.before_device_step = arm;
        else
          arm();
        bool failed = false;
        try {
          at == At::kStep      ? twins.step()
          : at == At::kAdd     ? twins.on_device().place_states()
          : at == At::kOffload ? twins.on_device().offload()
                               : twins.on_device().onload();
        } catch (const Error& error) {
          EXPECT_TRUE(error.kind() == ErrorKind::kIo || error.kind() == ErrorKind::kOutOfMemory) << error.what();
          failed = true;
        }
        twins.before_device_step = nullptr;
        twins.fake.fake().fail_at(0);
        one.env.disarm();
        if (failed && at == At::kStep) {
          const bool whole = twins.on_device().report().steps == 3;
          if (whole) {
            EXPECT_EQ(twins.differing(), 0);
          }
          wholes += whole;
          twins.restore(files.file("state"));
        }
        twins.step();
        EXPECT_EQ(twins.differing(), 0);
        for (int i = 0; i < 2; ++i) twins.step();
        EXPECT_EQ(twins.differing(), 0);
        expect_no_race(twins.fake);
        compared += twins.compared();
        faults += failed;
        silent = failed ? 0 : silent + 1;
        if (HasFailure()) return;
      }
      figure("{}, {}: {} of {} runs failed ({} after all was done)", names[static_cast<int>(at)],
             call == Call::kAny     ? "device"
             : call == Call::kPread ? "read"
             : call == Call::kMap   ? "memory"
                                    : "write",
             faults, runs, wholes);
      if (call == Call::kAny) {
        EXPECT_GT(faults, 0);
      }
    }
  figure("differing bytes 0 of {}", compared);
}

// A write and a device call fail in one step: the next step is an ordinary one and does not raise the error again.
TEST(DeviceDisk, AFailureIsToldOfOnce) {
  const TemporaryDirectory files;
  int64_t failed = 0, compared = 0;
  for (int64_t n = 1; n <= 60; n += 2) {
    SCOPED_TRACE(n);
    Rng rng(9300 + static_cast<uint64_t>(n));
    ThreeTiers one(rng, adamw(), pages(3, 3));
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

// A step that a failed read stops half-way continues there, as in host memory: pieces that fell behind catch up.
TEST(DeviceDisk, AReadThatFailsStopsTheStepHalfWay) {
  Rng rng = seeded("failed reads behind a device", 375);
  int64_t stopped = 0;
  for (int64_t n = 1; n <= 8; ++n) {
    ThreeTiers one(rng, adamw(), pages(3, 3));
    FakeTwins& twins = *one.twins;
    for (int i = 0; i < 6; ++i) twins.add(DType::kF32, {1024});
    twins.step();
    one.env.arm({Call::kPread, n, false, EIO});
    try {
      twins.step();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kIo);
      ++stopped;
    }
    one.env.disarm();
    twins.step();  // works, and steps every chunk
    EXPECT_EQ(twins.on_device().report().kept_bytes, 0);
    expect_no_race(twins.fake);
  }
  EXPECT_GT(stopped, 3);
  figure("{} of 8 steps stopped by a read, and all optimizers went on", stopped);
}

TEST(DeviceDisk, BudgetsThatContradictAreRefused) {
  Rng rng = seeded("budgets of three tiers", 376);
  struct Bad {
    lowtide::Memory memory;
    const char* says;
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
  };
  for (const Bad& bad : all)
    expect_refusal(
        [&] {
          ThreeTiers one(rng, adamw("fp32"), bad.memory, {.steps_pinned = true});
          one.twins->add(DType::kF32, {20, 1000});
          one.twins->step();
        },
        bad.says);
}

}  // namespace
}  // namespace lowtide::testing
