// Claims: if managed state exceeds the device by one page, a driver that evicts the least recently touched page moves
// all pages in every step, both ways; chunks move only what does not fit, and need only two slots on the device.
// Counted on the fake device, against figures derived here.
#include "support/managed_traffic.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int64_t kPage = 64 << 10;

TEST(ManagedPages, ThePageTouchedLongestAgoMakesRoom) {
  fake::ManagedPages pages(10, 25);  // two pages
  EXPECT_EQ(pages.capacity(), 2);
  EXPECT_EQ(pages.add(15), 0);
  EXPECT_EQ(pages.add(15), 15);  // 30 bytes: pages 0, 1, 2
  EXPECT_EQ(pages.pages(), 3);
  pages.touch(0, 10);   // page 0 comes
  pages.touch(5, 10);   // page 0 stays, page 1 comes
  pages.touch(3, 1);    // page 0 again, so page 1 is now the older
  pages.touch(20, 10);  // page 2 comes, page 1 goes
  EXPECT_EQ(pages.in(), 3);
  EXPECT_EQ(pages.out(), 1);
  pages.touch(0, 10);  // still there
  EXPECT_EQ(pages.in(), 3);
  pages.touch(10, 20);  // page 1 comes, page 2 goes; page 2 comes, page 0 goes
  EXPECT_EQ(pages.in(), 5);
  EXPECT_EQ(pages.out(), 3);
}

// N pages are touched in one order, with room for C. If C >= N, N come once. Otherwise the next page needed is the one
// evicted, so N come in each step; C of the first step stay until the second, so N - C go in the first, N later.
TEST(ManagedPages, StateBeyondTheDeviceMovesWholeInEveryStep) {
  Rng rng = seeded("managed pages", 104);
  TrafficCase c;
  c.page_bytes = kPage, c.params = 5, c.steps = 3;
  c.elements = 40 * kPage / 8;  // of 8 bytes of state: 40 pages
  constexpr int64_t kAll = 40;
  const auto bytes = [](int64_t a, int64_t b, int64_t c) {
    return std::vector<int64_t>{a * kPage, b * kPage, c * kPage};
  };
  for (const int64_t room : {int64_t{4}, kAll / 2, kAll - 1, kAll, kAll + 8}) {
    c.device_bytes = room * kPage;
    const Traffic managed = managed_traffic(c, rng.next());
    const bool fits = room >= kAll;
    EXPECT_EQ(managed.in, fits ? bytes(kAll, 0, 0) : bytes(kAll, kAll, kAll)) << "room for " << room;
    EXPECT_EQ(managed.out, fits ? bytes(0, 0, 0) : bytes(kAll - room, kAll, kAll)) << "room for " << room;
    figure("{} pages, room for {}: step 3 moves {} in and {} out", kAll, room, managed.in[2] / kPage,
           managed.out[2] / kPage);
  }
}

// There are 40 chunks of a page. A ring of S slots comes first (two if there is no room for three, else three or four),
// R - S chunks stay, and 40 - (R - S) go in and out in each step. Once, up to S more are read for the next step.
TEST(ManagedPages, ChunksMoveWhatDoesNotFit) {
  Rng rng = seeded("streamed chunks", 105);
  TrafficCase c;
  c.page_bytes = kPage, c.params = 5, c.steps = 3;
  c.elements = 40 * kPage / 8;
  for (const int64_t room : {2, 10, 20, 38, 40}) {
    c.device_bytes = room * kPage;
    const Traffic streamed = streamed_traffic(c, rng.next());
    EXPECT_LE(streamed.device_bytes, c.device_bytes);
    EXPECT_EQ(streamed.state_bytes, 40 * kPage);
    const int64_t moved = streamed.out[0] / kPage, slots = room == 2 ? 2 : moved - (40 - room);
    if (room == 40) {
      EXPECT_EQ(streamed.in, std::vector<int64_t>(3, 0));
      EXPECT_EQ(streamed.out, std::vector<int64_t>(3, 0));
    } else {
      EXPECT_EQ(moved, 40 - (room - slots)) << "room for " << room;
      EXPECT_TRUE(room == 2 || slots == 3 || slots == 4) << slots;
      EXPECT_EQ(streamed.out, std::vector<int64_t>(3, moved * kPage));
      const int64_t ahead = streamed.in[0] + streamed.in[1] - 2 * moved * kPage;
      EXPECT_GE(ahead, 0) << "room for " << room;
      EXPECT_LE(ahead, slots * kPage) << "room for " << room;
      EXPECT_EQ(streamed.in[2], moved * kPage) << "room for " << room;
    }
    figure("40 chunks, room for {}: step 3 moves {} each way", room, streamed.in[2] / kPage);
  }
}

}  // namespace
}  // namespace lowtide::testing
