// Votes, and the counters behind them, have the same bits on the device and on the CPU.
#include "device/sign_support.h"

namespace lowtide::testing {
namespace {

// Voters whose ballots, and whose presences, are one piece of memory each, so that guards are checked once.
struct Voters {
  int64_t count;
  size_t voters, row, stride, presence_row;
  bool with_weights, with_presence;
  std::vector<uint32_t> weights;
  Bits ballots, presences;

  Voters(Rng& rng, bool presence)
      : count(rng.chance(0.6) ? rng.below(140) : rng.below(1300)),
        voters(static_cast<size_t>(rng.chance(0.05) ? rng.between(30, 300) : rng.below(10))),
        row(sign_bytes(count)),
        stride(row + static_cast<size_t>(rng.below(5))),
        presence_row(static_cast<size_t>(presence_bytes(count))),
        with_weights(rng.chance(0.5)),
        with_presence(presence && voters > 0),  // no voters have no presence
        ballots(random_bytes(voters * stride + 1, rng)) {
    const int64_t most = rng.chance(0.2) ? (int64_t{1} << 31) / (static_cast<int64_t>(voters) + 1) - 1 : 5;
    for (size_t v = 0; v < voters; ++v)
      weights.push_back(with_weights ? static_cast<uint32_t>(rng.below(most + 1)) : 1);
    for (size_t v = 1; v < voters; v += 2)  // contradictions make ties
      if (rng.chance(0.5))
        for (size_t b = 0; b < row; ++b)
          ballots[v * stride + b] = static_cast<unsigned char>(~ballots[b + (v - 1) * stride]);
    for (size_t v = 0; v < voters && with_presence; ++v) {
      const Bits present = v % 2 && rng.chance(0.5)
                               ? Bits(presences.end() - static_cast<ptrdiff_t>(presence_row), presences.end())
                               : random_presence(count, rng);
      presences.insert(presences.end(), present.begin(), present.end());
      for (int64_t i = 0; i < count; ++i)
        if (!sign_of(present, i / kSignBlock)) set(v, i, false);
    }
  }

  bool sign(size_t v, int64_t i) const { return ballots[v * stride + static_cast<size_t>(i / 8)] >> (i % 8) & 1; }
  void set(size_t v, int64_t i, bool bit) {
    unsigned char& byte = ballots[v * stride + static_cast<size_t>(i / 8)];
    byte = static_cast<unsigned char>((byte & ~(1 << (i % 8))) | bit << (i % 8));
  }
  bool votes(size_t v, int64_t i) const {
    const int64_t block = i / kSignBlock;
    return weights[v] &&
           (!with_presence || presences[v * presence_row + static_cast<size_t>(block / 8)] >> (block % 8) & 1);
  }
  std::vector<const std::byte*> rows(const std::byte* from, size_t step) const {
    std::vector<const std::byte*> out;
    for (size_t v = 0; v < voters; ++v) out.push_back(weights[v] ? from + v * step : nullptr);
    return out;
  }
};

TEST(DeviceVotes, GiveTheBitsOfTheCpu) {
  LT_NEEDS_DEVICE();
  auto rng = seeded("votes on the device", 92);
  TestDevice& device = TestDevice::get();
  const auto cpu = open_backend("cpu", "");
  const int cases = share_of(12000);
  int64_t differing = 0, signs = 0, weighted = 0, with_presence = 0, in_place = 0, absent = 0, empty = 0;
  int64_t ties[8] = {};
  for (int c = 0; c < cases; ++c) {
    const Voters of(rng, rng.chance(0.4));
    const auto& [rule, name] = tie_rules()[static_cast<size_t>(rng.below(std::ssize(tie_rules())))];
    const bool over_a_ballot = of.voters && rng.chance(0.2);
    Bits previous = random_bytes(of.row, rng);
    const GuardedBytes previous_there(previous.data(), previous.size());
    Twin ballots(of.ballots), presences(of.presences);
    Twin result(random_bytes(of.row + 1, rng)), zeros(random_bytes(of.row + 1, rng));
    Twin present(random_bytes(of.with_presence ? of.presence_row + 1 : 0, rng));
    VoteItem item;
    item.big = !of.with_presence && rng.chance(0.5);
    item.count = of.count, item.ties = rule, item.seed = rng.next(), item.step = rng.next();
    item.first_index = rng.chance(0.5) ? static_cast<uint64_t>(rng.below(1000)) : rng.next() >> 1;
    if (of.with_weights) item.weights = of.weights;
    const auto vote = [&](Backend& on, std::byte* rows, std::byte* present_rows, std::byte* to, const std::byte* before,
                          std::byte* marks, std::byte* present_to, void* queue) {
      const auto pointers = of.rows(rows, of.stride), of_presence = of.rows(present_rows, of.presence_row);
      VoteItem mine = item;
      mine.ballots = pointers, mine.previous = before, mine.zeros = marks, mine.result = over_a_ballot ? rows : to;
      if (of.with_presence) mine.presence = of_presence, mine.result_presence = present_to;
      on.vote_signs(mine, 1, queue);
    };
    vote(*cpu, bytes(ballots.cpu), bytes(presences.cpu), bytes(result.cpu), bytes(previous), bytes(zeros.cpu),
         bytes(present.cpu), nullptr);
    vote(*device.backend, ballots.device.data(), presences.device.data(), result.device.data(), previous_there.data(),
         zeros.device.data(), present.device.data(), device.queue);

    for (int64_t i = 0; i < of.count; ++i) {
      int64_t sum = 0;
      bool any = !of.with_presence;
      for (size_t v = 0; v < of.voters; ++v)
        if (of.votes(v, i))
          sum += of.sign(v, i ^ (item.big ? 7 : 0)) ? int64_t{of.weights[v]} : -int64_t{of.weights[v]}, any = true;
      ties[static_cast<size_t>(rule)] += any && sum == 0, empty += !any;
    }
    differing +=
        ballots.differing() + presences.differing() + result.differing() + zeros.differing() + present.differing();
    signs += of.count, weighted += of.with_weights, with_presence += of.with_presence, in_place += over_a_ballot;
    for (const uint32_t weight : of.weights) absent += !weight;
  }
  figure(
      "{} votes on {} signs, {} weighted, {} with presence ({} signs without a vote), {} ballots absent, {} in place: "
      "{} "
      "bits differ from the CPU's",
      cases, signs, weighted, with_presence, empty, absent, in_place, differing);
  for (const auto& [rule, name] : tie_rules()) {
    figure("{} ties for {}", ties[static_cast<size_t>(rule)], name);
    EXPECT_GT(ties[static_cast<size_t>(rule)], share_of(1000));
  }
  EXPECT_EQ(differing, 0);
  EXPECT_GT(empty, share_of(10000));
}

TEST(DeviceVotes, CountersAreThoseOfTheCpu) {
  LT_NEEDS_DEVICE();
  auto rng = seeded("counters on the device", 95);
  TestDevice& device = TestDevice::get();
  const auto cpu = open_backend("cpu", "");
  const int cases = share_of(2500);
  int64_t differing = 0, counters = 0, most_planes = 0;
  for (int c = 0; c < cases; ++c) {
    const Voters of(rng, false);
    uint32_t sum = 0;
    for (const uint32_t weight : of.weights) sum += weight;
    const auto planes =
        static_cast<size_t>(std::bit_width(sum)) + static_cast<size_t>(rng.chance(0.5) ? 0 : rng.below(8));
    const size_t stride = of.row + static_cast<size_t>(rng.below(5));
    const GuardedBytes ballots_there(of.ballots.data(), of.ballots.size());
    Twin out(random_bytes(planes * stride + 1, rng));
    const auto count = [&](Backend& on, const std::byte* rows, std::byte* to, size_t number, void* queue) {
      const auto pointers = of.rows(rows, of.stride);
      std::vector<std::byte*> results;
      for (size_t j = 0; j < number; ++j) results.push_back(to + j * stride);
      CountItem item;
      item.count = of.count, item.ballots = pointers, item.planes = results;
      if (of.with_weights) item.weights = of.weights;
      on.count_signs(item, 1, queue);
    };
    count(*device.backend, ballots_there.data(), out.device.data(), planes, device.queue);
    const size_t most = std::min<size_t>(planes, 32);  // planes that a weight's bits reach, which the CPU counts
    count(*cpu, reinterpret_cast<const std::byte*>(of.ballots.data()), bytes(out.cpu), most, nullptr);
    for (size_t j = most; j < planes; ++j)
      std::fill_n(out.cpu.begin() + static_cast<ptrdiff_t>(j * stride), of.row, static_cast<unsigned char>(0));
    differing += out.differing();
    counters += of.count, most_planes = std::max(most_planes, static_cast<int64_t>(planes));
  }
  figure("{} counts of {} signs, up to {} planes: {} bits differ from the CPU's", cases, counters, most_planes,
         differing);
  EXPECT_EQ(differing, 0);
  EXPECT_GT(most_planes, 32);
}

}  // namespace
}  // namespace lowtide::testing
