// Fills and signs on the fake device run late, in the order of their queues, under the race checker.
#include "support/fake/fake_backend.h"

#include "support/sign_reference.h"
#include "support/test.h"

namespace lowtide::fake {
namespace {

using testing::Bits;

// Packs two pieces on one queue and votes on another, with or without an event in between.
struct Outcome {
  int64_t differing = 0;
  size_t races = 0;
};

Outcome run(uint64_t seed, bool ordered) {
  constexpr int64_t kCount = 1003, kBytes = 126;
  testing::Rng rng(seed);
  FakeBackend fake({seed});
  void *const packs = fake.make_queue(), *const votes = fake.make_queue();
  const auto memory = [&](int64_t bytes) { return DeviceBytes(fake, MemoryKind::kDevice, bytes); };
  const Bits elements = testing::random_elements(DType::kBF16, kCount, rng);
  Bits wanted(kBytes), got(kBytes);
  {
    const DeviceBytes values = memory(2 * kCount), ballots = memory(3 * kBytes), result = memory(kBytes);
    fake.copy(packs, values.data(), elements.data(), 2 * kCount);
    fake.fill(packs, ballots.data(), 0xff, 1, 3 * kBytes);
    for (int v = 0; v < 2; ++v)
      fake.pack_signs({DType::kBF16, 0, kCount, values.data(), ballots.data() + v * kBytes}, packs);
    if (ordered) fake.wait(votes, fake.record(packs));
    {
      // Two equal voters against one that is all +. The item's arrays are gone when the work runs.
      const std::vector<const std::byte*> rows = {ballots.data(), ballots.data() + kBytes, ballots.data() + 2 * kBytes};
      VoteItem item;
      item.count = kCount, item.ballots = rows, item.result = result.data();
      fake.vote_signs(item, 1, votes);
    }
    fake.copy(votes, got.data(), result.data(), kBytes);
    fake.host_wait(fake.record(votes));
    fake.host_wait(fake.record(packs));
  }
  testing::reference_pack(DType::kBF16, elements, 0, kCount, &wanted);
  Outcome out;
  for (size_t b = 0; b < kBytes; ++b) out.differing += std::popcount(static_cast<unsigned>(got[b] ^ wanted[b]));
  out.races = fake.fake().race_checker().races().size();
  return out;
}

TEST(FakeBackend, SignsAndFillsKeepTheOrderOfQueuesOnly) {
  constexpr int kSeeds = 100;
  int64_t differing = 0, racy = 0, loose_racy = 0, loose_wrong = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Outcome ordered = run(seed, true), loose = run(seed, false);
    differing += ordered.differing, racy += ordered.races > 0;
    loose_racy += loose.races > 0, loose_wrong += loose.differing > 0;
  }
  testing::figure("{} seeds: ordered, {} bits differ and {} have races; without the event {} have races, {} are wrong",
                  kSeeds, differing, racy, loose_racy, loose_wrong);
  EXPECT_EQ(differing, 0);
  EXPECT_EQ(racy, 0);
  EXPECT_EQ(loose_racy, kSeeds);
  EXPECT_GT(loose_wrong, kSeeds / 10);
}

}  // namespace
}  // namespace lowtide::fake
