// The fake device keeps every order that it is given and breaks every other order under some seed; its race checker
// names exactly the programs that lack an order.
#include "support/fake/fake_device.h"

#include "support/test.h"

namespace lowtide::fake {
namespace {

constexpr int64_t kBytes = 48;

// Two streams and two regions; `source` is written, `target` is not.
struct Bench {
  explicit Bench(uint64_t seed) : device(seed) {
    a = device.add_stream("a", 10);
    b = device.add_stream("b", 10);
    memory = device.add_memory("memory", 4 * kBytes);
    source = {device.allocate(memory, kBytes), 0, kBytes};
    target = {device.allocate(memory, kBytes), 0, kBytes};
    device.host_write(source, ones.data());
  }
  size_t races() const { return device.race_checker().races().size(); }

  const std::vector<uint8_t> ones = std::vector<uint8_t>(static_cast<size_t>(kBytes), 1);
  FakeDevice device;
  int a, b, memory;
  Span source, target;
};

// The result of a copy on stream a, seen from stream b over many seeds: all new bytes, some, or none.
struct Seen {
  int whole = 0, partly = 0, nothing = 0, racy = 0;
};

template <class Queue>
Seen watch_copy(int seeds, Queue&& queue) {
  Seen seen;
  for (int seed = 0; seed < seeds; ++seed) {
    Bench t(static_cast<uint64_t>(seed));
    std::vector<uint8_t> got;
    queue(t, [&] {
      t.device.launch(t.b, "reader", {t.target}, {}, kBytes,
                      [&] { got.assign(t.device.data(t.target), t.device.data(t.target) + kBytes); });
    });
    t.device.synchronize();
    const auto fresh = std::count(got.begin(), got.end(), 1);
    ++(fresh == kBytes ? seen.whole : fresh ? seen.partly : seen.nothing);
    seen.racy += t.races() > 0;
  }
  return seen;
}

TEST(FakeDevice, AWaitOrdersAndNothingElseDoes) {
  constexpr int kSeeds = 500;
  const Seen waited = watch_copy(kSeeds, [](Bench& t, auto&& reader) {
    const int event = t.device.new_event();
    t.device.copy(t.a, "copy", t.target, t.source);
    t.device.record(event, t.a);
    t.device.wait(t.b, event);
    reader();
  });
  const Seen loose = watch_copy(kSeeds, [](Bench& t, auto&& reader) {
    t.device.copy(t.a, "copy", t.target, t.source);
    reader();
  });
  testing::figure("{} seeds: with a wait {} whole, {} races; without {} whole, {} in fragments, {} poison, {} races",
                  kSeeds, waited.whole, waited.racy, loose.whole, loose.partly, loose.nothing, loose.racy);
  EXPECT_EQ(waited.whole, kSeeds);
  EXPECT_EQ(waited.racy, 0);
  EXPECT_EQ(loose.racy, kSeeds);
  EXPECT_GT(loose.whole, kSeeds / 20);
  EXPECT_GT(loose.partly, kSeeds / 20);
  EXPECT_GT(loose.nothing, kSeeds / 20);
}

TEST(FakeDevice, AWaitMeansTheLastRecordBeforeIt) {
  constexpr int kSeeds = 500;
  const Seen early = watch_copy(kSeeds, [](Bench& t, auto&& reader) {
    const int event = t.device.new_event();
    t.device.wait(t.b, event);  // never recorded, so there is nothing to wait for
    t.device.record(event, t.a);
    t.device.wait(t.b, event);
    t.device.copy(t.a, "copy", t.target, t.source);
    t.device.record(event, t.a);  // too late for the waits above
    reader();
  });
  const Seen again = watch_copy(kSeeds, [](Bench& t, auto&& reader) {
    const int event = t.device.new_event();
    t.device.record(event, t.a);
    t.device.copy(t.a, "copy", t.target, t.source);
    t.device.record(event, t.a);
    t.device.wait(t.b, event);
    t.device.record(event, t.b);  // changes nothing
    reader();
  });
  testing::figure(
      "{} seeds: recorded after the wait, {} whole and {} races; recorded again before it, {} whole and {} races",
      kSeeds, early.whole, early.racy, again.whole, again.racy);
  EXPECT_EQ(early.racy, kSeeds);
  EXPECT_LT(early.whole, kSeeds);
  EXPECT_EQ(again.racy, 0);
  EXPECT_EQ(again.whole, kSeeds);
}

TEST(FakeDevice, NothingRunsBeforeTheHostWaits) {
  int lazy = 0;
  constexpr int kSeeds = 100;
  for (int seed = 0; seed < kSeeds; ++seed) {
    Bench t(static_cast<uint64_t>(seed));
    int ran_a = 0, ran_b = 0;
    const int event = t.device.new_event();
    t.device.launch(t.b, "b", {}, {}, 0, [&] { ++ran_b; });
    t.device.launch(t.a, "a", {}, {}, 0, [&] { ++ran_a; });
    t.device.record(event, t.a);
    ASSERT_EQ(ran_a + ran_b, 0);
    t.device.host_wait(event);
    ASSERT_EQ(ran_a, 1);
    lazy += ran_b == 0;
    t.device.synchronize();
    ASSERT_EQ(ran_b, 1);
  }
  testing::figure("{} seeds: {} left what the host did not wait for", kSeeds, lazy);
  EXPECT_GT(lazy, kSeeds / 2);
  EXPECT_LT(lazy, kSeeds);
}

// Poison must not reach an earlier, properly ordered reader.
TEST(FakeDevice, PoisonComesNoEarlierThanTheCopyMayStart) {
  constexpr int kSeeds = 500;
  int ordered = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    Bench t(static_cast<uint64_t>(seed));
    t.device.host_write(t.target, t.ones.data());
    std::vector<uint8_t> got;
    const int event = t.device.new_event();
    t.device.launch(t.b, "reader", {t.target}, {}, 0,
                    [&] { got.assign(t.device.data(t.target), t.device.data(t.target) + kBytes); });
    t.device.record(event, t.b);
    t.device.wait(t.a, event);
    t.device.copy(t.a, "copy", t.target, t.source);
    t.device.synchronize();
    ordered += got == t.ones && t.races() == 0;
  }
  EXPECT_EQ(ordered, kSeeds);
  Bench t(0);
  t.device.copy(t.a, "copy", t.target, t.source);
  EXPECT_EQ(*t.device.data(t.target), 0xDB) << "at enqueue, if nothing is before it";
  testing::figure("{} seeds: {} earlier readers saw the old bytes", kSeeds, ordered);
}

TEST(FakeDevice, MemoryIsBoundedPoisonedAndWatched) {
  Bench t(1);
  EXPECT_EQ(t.device.used(t.memory), 2 * kBytes);
  EXPECT_EQ(t.device.host_read(t.target), std::vector<uint8_t>(static_cast<size_t>(kBytes), 0xA5));
  testing::refusal([&] { t.device.allocate(t.memory, 2 * kBytes + 1); }, ErrorKind::kOutOfMemory);
  t.device.copy(t.a, "copy", t.target, t.source);
  t.device.synchronize();
  t.device.free(t.source.region);
  EXPECT_EQ(t.races(), 0u) << "the host has waited";
  EXPECT_EQ(*t.device.data(t.source), 0xDF);
  EXPECT_THROW(t.device.copy(t.a, "copy", t.target, t.source), Error) << "freed";
  t.device.launch(t.a, "late", {t.target}, {}, 0, [] {});
  t.device.free(t.target.region);
  ASSERT_EQ(t.races(), 1u) << "the host has not";
  EXPECT_EQ(t.device.race_checker().races()[0].first, "late");
  EXPECT_EQ(t.device.race_checker().races()[0].second, "free");
  EXPECT_EQ(t.device.used(t.memory), 0);
  EXPECT_EQ(t.device.peak(t.memory), 2 * kBytes);
}

TEST(FakeDevice, TheVirtualClockOverlapsStreamsAndKeepsWaits) {
  const auto seconds = [](bool waits) {
    Bench t(2);  // 10 bytes per second
    const int event = t.device.new_event();
    t.device.launch(t.a, "a", {}, {}, 50, [] {});
    t.device.record(event, t.a);
    if (waits) t.device.wait(t.b, event);
    t.device.launch(t.b, "b", {}, {}, 30, [] {});
    t.device.synchronize();
    return t.device.now();
  };
  EXPECT_DOUBLE_EQ(seconds(false), 5);
  EXPECT_DOUBLE_EQ(seconds(true), 8);
  testing::figure("5 s and 3 s: {} s side by side, {} s one after the other", seconds(false), seconds(true));
}

// Gives a random program to the device and to a model in which an operation follows everything that its stream has
// seen.
struct Program {
  struct Done {
    Span span;
    bool write;
  };
  std::vector<Done> operations;
  bool racy = false;

  void add(std::set<size_t>& seen, const Span& span, bool write) {
    for (size_t i = 0; i < operations.size(); ++i)
      racy |= operations[i].span.overlaps(span) && (write || operations[i].write) && !seen.count(i);
    seen.insert(operations.size());
    operations.push_back({span, write});
  }
};

TEST(RaceChecker, ReportsExactlyTheProgramsWithAnUnorderedConflict) {
  testing::Rng rng = testing::seeded("RaceChecker.ReportsExactlyTheProgramsWithAnUnorderedConflict", 99);
  constexpr int kPrograms = 20000, kStreams = 3, kEvents = 3;
  int racy = 0, wrong = 0;
  for (int p = 0; p < kPrograms; ++p) {
    FakeDevice device(rng.next());
    Program model;
    std::set<size_t> host, seen[kStreams], events[kEvents];
    const int memory = device.add_memory("memory", 64), region = device.allocate(memory, 64);
    for (int i = 0; i < kStreams; ++i) device.add_stream("stream");
    for (int i = 0; i < kEvents; ++i) device.new_event();
    for (int64_t i = 0, n = rng.between(2, 14); i < n; ++i) {
      const int stream = static_cast<int>(rng.below(kStreams)), event = static_cast<int>(rng.below(kEvents));
      const Span span{region, rng.below(40), rng.between(1, 24)};
      const bool write = rng.chance(0.3);
      switch (rng.below(8)) {
        case 0:
        case 1:
          device.record(event, stream);
          seen[stream].insert(host.begin(), host.end());
          events[event] = seen[stream];
          break;
        case 2:
        case 3:
          device.wait(stream, event);
          seen[stream].insert(events[event].begin(), events[event].end());
          break;
        case 4:
          device.host_wait(event);
          host.insert(events[event].begin(), events[event].end());
          break;
        default:
          seen[stream].insert(host.begin(), host.end());
          model.add(seen[stream], span, write);
          device.launch(stream, "work", write ? std::vector<Span>{} : std::vector<Span>{span},
                        write ? std::vector<Span>{span} : std::vector<Span>{}, 0, [] {});
      }
    }
    racy += model.racy;
    wrong += model.racy != !device.race_checker().races().empty();
  }
  testing::figure("{} programs, {} of them with an unordered conflict: the checker is wrong on {}", kPrograms, racy,
                  wrong);
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(racy, kPrograms / 5);
  EXPECT_LT(racy, kPrograms * 4 / 5);
}

}  // namespace
}  // namespace lowtide::fake
