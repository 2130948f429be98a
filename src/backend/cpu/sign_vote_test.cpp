// Compares votes and counts with the definition, for every option, on every target that runs here and several threads.
#include "backend/cpu/cpu_backend.h"
#include "support/sign_reference.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

namespace portable {
#include "portable/portable.h"
#include "portable/sign.h"
}  // namespace portable

void put(Bits* bits, int64_t i) { (*bits)[static_cast<size_t>(i / 8)] |= static_cast<unsigned char>(1 << (i % 8)); }

struct Case {
  int64_t count = 0;
  std::vector<Bits> ballots, presence;  // presence: empty, or one for each ballot
  std::vector<uint32_t> weights;        // empty: each is 1
  TieRule ties = TieRule::kHash;
  uint64_t seed = 0, step = 0, first_index = 0;
  Bits previous;
  bool result_is_previous = false;
  int result_is_ballot = -1;

  uint32_t weight(size_t v) const { return weights.empty() ? 1 : weights[v]; }
  std::vector<const std::byte*> pointers(std::vector<Bits>& of) const {
    std::vector<const std::byte*> all;
    for (size_t v = 0; v < of.size(); ++v) all.push_back(weight(v) ? bytes(of[v]) : nullptr);
    return all;
  }
};

struct Outcome {
  Bits result, zeros, presence;
  std::vector<Bits> planes;
  int64_t ties = 0;
};

// Computes the outcome sign by sign.
Outcome define(const Case& c) {
  Outcome out;
  out.result.resize(sign_bytes(c.count)), out.zeros.resize(sign_bytes(c.count));
  out.presence.resize(static_cast<size_t>(presence_bytes(c.count)));
  uint64_t all = 0;
  for (size_t v = 0; v < c.ballots.size(); ++v) all += c.weight(v);
  out.planes.assign(static_cast<size_t>(std::bit_width(all)), Bits(out.result.size()));
  for (int64_t i = 0; i < c.count; ++i) {
    uint64_t plus = 0, votes = 0;
    for (size_t v = 0; v < c.ballots.size(); ++v) {
      if (c.weight(v) && sign_of(c.ballots[v], i)) plus += c.weight(v);
      if (c.weight(v) && (c.presence.empty() || sign_of(c.presence[v], i / kSignBlock))) votes += c.weight(v);
    }
    for (size_t j = 0; j < out.planes.size(); ++j)
      if (plus >> j & 1) put(&out.planes[j], i);
    if (!c.presence.empty()) {
      if (votes == 0) continue;
      put(&out.presence, i / kSignBlock);
    }
    bool one = 2 * plus > votes;
    if (2 * plus == votes) {
      ++out.ties;
      const uint64_t index = c.first_index + static_cast<uint64_t>(i);
      if (c.ties == TieRule::kZero) put(&out.zeros, i);
      one = c.ties == TieRule::kPlus || (c.ties == TieRule::kPrevious && sign_of(c.previous, i)) ||
            (c.ties == TieRule::kHash && portable::tie_group(c.seed, c.step, index / 32) >> (index % 32) & 1);
    }
    if (one) put(&out.result, i);
  }
  return out;
}

// Returns how many bits of the backend's result, marks, presence and counts are wrong.
int64_t vote_apart(Backend& cpu, Case c, const Outcome& wanted, int threads) {
  Outcome got;
  got.result.assign(wanted.result.size(), 0xa5), got.zeros = Bits(wanted.zeros.size(), 0);
  got.presence.assign(wanted.presence.size(), 0xa5);
  const auto ballots = c.pointers(c.ballots), presence = c.pointers(c.presence);
  // Counts come first, because a result may overwrite a ballot.
  got.planes.assign(wanted.planes.size() + 2, Bits(wanted.result.size(), 0xa5));
  std::vector<std::byte*> planes;
  for (Bits& plane : got.planes) planes.push_back(bytes(plane));
  CountItem counts{c.count, ballots, c.weights, planes};
  cpu.count_signs(counts, threads, nullptr);
  VoteItem item;
  item.count = c.count, item.ballots = ballots, item.weights = c.weights, item.presence = presence;
  item.ties = c.ties, item.seed = c.seed, item.step = c.step, item.first_index = c.first_index;
  Bits* result = c.result_is_previous      ? &c.previous
                 : c.result_is_ballot >= 0 ? &c.ballots[static_cast<size_t>(c.result_is_ballot)]
                                           : &got.result;
  item.previous = bytes(c.previous), item.result = bytes(*result), item.zeros = bytes(got.zeros);
  item.result_presence = c.presence.empty() ? nullptr : bytes(got.presence);
  cpu.vote_signs(item, threads, nullptr);
  int64_t apart = bits_apart(*result, wanted.result);
  if (c.ties == TieRule::kZero) apart += bits_apart(got.zeros, wanted.zeros);
  if (!c.presence.empty()) apart += bits_apart(got.presence, wanted.presence);
  for (size_t j = 0; j < got.planes.size(); ++j)
    apart += bits_apart(got.planes[j], j < wanted.planes.size() ? wanted.planes[j] : Bits(wanted.result.size(), 0));
  return apart;
}

Case random_case(Rng& rng, int64_t voters, int64_t count) {
  Case c;
  c.count = count;
  for (int64_t v = 0; v < voters; ++v) c.ballots.push_back(random_bits(count, rng));
  // Pairs of opposite ballots make many ties.
  if (rng.chance(0.5))
    for (size_t v = 0; v + 1 < c.ballots.size(); v += 2)
      for (size_t b = 0; b < c.ballots[v].size(); ++b)
        if (rng.chance(0.9)) c.ballots[v + 1][b] = static_cast<unsigned char>(~c.ballots[v][b]);
  const int64_t kind = rng.below(5);
  const uint32_t each = static_cast<uint32_t>(rng.between(1, 1000));
  const int64_t most = kind == 2 ? 8 : std::max<int64_t>(1, ((int64_t{1} << 31) - 1) / std::max<int64_t>(1, voters));
  for (int64_t v = 0; kind && v < voters; ++v)
    c.weights.push_back(rng.chance(0.15) ? 0 : kind == 1 ? each : static_cast<uint32_t>(rng.between(1, most)));
  if (rng.chance(0.3)) {
    for (size_t v = 0; v < c.ballots.size(); ++v) {
      c.presence.push_back(random_bits((count + kSignBlock - 1) / kSignBlock, rng));
      if (rng.chance(0.3)) std::fill(c.presence.back().begin(), c.presence.back().end(), static_cast<unsigned char>(0));
      for (int64_t i = 0; i < count; ++i)
        if (!sign_of(c.presence[v], i / kSignBlock))
          c.ballots[v][static_cast<size_t>(i / 8)] &= static_cast<unsigned char>(~(1 << (i % 8)));
    }
  }
  const auto& rules = tie_rules();
  c.ties = rules[static_cast<size_t>(rng.below(static_cast<int64_t>(rules.size())))].first;
  c.seed = rng.next(), c.step = rng.next() % 1000;
  // An arbitrary index, one on a word's border, and one where the 32 bits of a group's number end.
  const uint64_t indices[] = {rng.next() >> 10, 512 * (rng.next() >> 20),
                              (uint64_t{1} << 37) - static_cast<uint64_t>(rng.below(600))};
  c.first_index = indices[rng.below(3)];
  c.previous = random_bits(count, rng);
  c.result_is_previous = rng.chance(0.3);
  if (!c.result_is_previous && voters && rng.chance(0.3)) c.result_is_ballot = static_cast<int>(rng.below(voters));
  return c;
}

TEST(CpuSignKernels, VotesAndCountsWithEveryOption) {
  auto rng = seeded("votes", 94);
  const auto targets = cpu::make_backend("")->targets();
  std::vector<std::unique_ptr<Backend>> backends;
  for (const auto& name : targets) backends.push_back(cpu::make_backend(name));
  constexpr int64_t kSizes[] = {0, 1, 7, 8, 63, 64, 65, 127, 128, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025, 4097};
  const int cases = share_of(20000);
  int64_t apart = 0, votes = 0, ties = 0, seen = 0, turned = 0, large = 0;
  for (int turn = 0; turn < cases; ++turn) {
    int64_t voters = rng.chance(0.8) ? rng.below(20) : rng.below(301);
    int64_t count = rng.chance(0.3) ? kSizes[rng.below(std::size(kSizes))] : rng.below(600);
    if (turn % 1000 == 7) voters = rng.below(40), count = rng.between(100000, 200000), ++large;  // several pieces
    if (turn % 5000 == 11) voters = 65535, count = rng.between(1, 20);
    if (voters > 20 && voters <= 300 && count > 1025) count = 600;
    const Case c = random_case(rng, voters, count);
    const Outcome wanted = define(c);
    for (size_t t = 0; t < targets.size(); ++t) {
      apart += vote_apart(*backends[t], c, wanted, 1 + (turn + static_cast<int>(t)) % 3);
      votes += voters * count;
    }
    ties += wanted.ties;
    if (turn % 4 || voters == 0 || voters > 300 || count == 0) continue;
    // Turning one bit of one ballot must change a count.
    Case other = c;
    const auto v = static_cast<size_t>(rng.below(voters));
    const int64_t i = rng.below(count);
    if (c.weight(v) == 0) continue;
    other.ballots[v][static_cast<size_t>(i / 8)] ^= static_cast<unsigned char>(1 << (i % 8));
    ++turned;
    seen += vote_apart(*backends[0], other, wanted, 1) > 0;
  }
  figure("{} votes with counts on {} targets, {} ballots' signs, {} ties: {} bits differ; {} of {} turned bits seen",
         cases, targets.size(), votes, ties, apart, seen, turned);
  EXPECT_EQ(apart, 0);
  EXPECT_GT(ties, share_of(100000));
  EXPECT_GE(large, share_of(20));
  EXPECT_GT(turned, share_of(3000));
  EXPECT_EQ(seen, turned);
}

// Votes on nothing but ties: the bits are fair, independent between elements and between steps, and depend on the
// element's index in the whole, however the whole is cut.
TEST(CpuSignKernels, HashedTiesAreFairAndOfTheElement) {
  constexpr int64_t kCount = 200000;
  const auto cpu = cpu::make_backend("");
  const auto bits_of = [&](uint64_t seed, uint64_t step, uint64_t first, int64_t count) {
    Bits result(sign_bytes(count));
    VoteItem item;
    item.count = count, item.seed = seed, item.step = step, item.first_index = first, item.result = bytes(result);
    cpu->vote_signs(item, 1, nullptr);
    return result;
  };
  const Bits all = bits_of(7, 3, 0, kCount);
  const auto agreement = [&](const Bits& other, int64_t lag) {
    int64_t same = 0;
    for (int64_t i = 0; i + lag < kCount; ++i) same += sign_of(all, i) == sign_of(other, i + lag);
    return static_cast<double>(same) / static_cast<double>(kCount - lag);
  };
  int64_t plus = 0;
  for (int64_t i = 0; i < kCount; ++i) plus += sign_of(all, i);
  const double fraction = static_cast<double>(plus) / kCount;
  // A fair coin deviates by more than 5 standard deviations in 1 of 1.7 million cases.
  const double bound = 5 * 0.5 / std::sqrt(kCount * 0.9);
  double worst = std::abs(fraction - 0.5);
  for (const int64_t lag : {1, 2, 7, 8, 31, 32, 33, 64, 256, 1024, 4096})
    worst = std::max(worst, std::abs(agreement(all, lag) - 0.5));
  for (const auto& [seed, step] : {std::pair{7, 4}, {7, 2}, {8, 3}, {6, 3}, {3, 7}})
    worst = std::max(
        worst,
        std::abs(agreement(bits_of(static_cast<uint64_t>(seed), static_cast<uint64_t>(step), 0, kCount), 0) - 0.5));
  int64_t differing = 0, compared = 0;
  auto rng = seeded("hashed ties", 83);
  for (int i = 0; i < 200; ++i) {
    const int64_t first = rng.below(kCount - 500), count = rng.between(1, 500);
    const Bits part = bits_of(7, 3, static_cast<uint64_t>(first), count);
    for (int64_t k = 0; k < count; ++k) differing += sign_of(part, k) != sign_of(all, first + k);
    compared += count;
  }
  figure("{} ties: {} are +, 16 correlations, the worst deviation {} of {}; {} of {} differ in parts", kCount, fraction,
         worst, bound, differing, compared);
  EXPECT_LT(worst, bound);
  EXPECT_EQ(differing, 0);
}

}  // namespace
}  // namespace lowtide::testing
