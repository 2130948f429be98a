// Tests that a vote sends the bytes of the formula and takes the algorithm of the cost model. parts_test.cpp compares
// votes of all algorithms with the definition.
#include "sign/wire.h"
#include "support/sign_ranks.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

TEST(SignCollective, BytesOnTheWireAreTheFormula) {
  Rng rng = seeded("bytes on the wire", 4);
  double worst = 0;
  for (int w = 2; w <= 16; ++w) {
    for (const bool two : {false, true}) {
      VoteCase of = random_vote(w, 1 << 20, rng);
      of.with_presence = false, of.options.ties = "hash";
      of.weights.assign(static_cast<size_t>(w), 1);
      of.options.algorithm = two ? SignAlgorithm::kTwoPhase : SignAlgorithm::kOnePhase;
      // The outcome must report the bytes that the hook saw.
      Ranks ranks(of);
      std::vector<int64_t> seen(static_cast<size_t>(w));
      ranks.inside[0]->on_message([&](ThreadGroup::Message& m) {
        if (m.sender != m.receiver) seen[static_cast<size_t>(m.sender)] += m.bytes;
      });
      std::vector<VoteResult> results;
      const std::vector<Ended> ended = take_vote(of, ranks, &results);
      const int64_t units = of.count / 1024;
      const int64_t shard = (units + w - 1) / w * 128;  // bytes
      const int64_t payload =
          two ? (w - 1) * (64 + shard + 64 + shard + (w + 7) / 8 * 8) : (w - 1) * (64 + of.count / 8);
      for (int r = 0; r < w; ++r) {
        const SignOutcome& outcome = ended[static_cast<size_t>(r)].outcome;
        ASSERT_TRUE(outcome.applied);
        ASSERT_EQ(outcome.payload_sent, payload);
        ASSERT_EQ(outcome.control_sent, 3 * 128 * (w - 1));
        ASSERT_EQ(seen[static_cast<size_t>(r)], outcome.payload_sent + outcome.control_sent);
        const double ideal = (two ? 2.0 / w : 1.0) * (w - 1) * static_cast<double>(of.count) / 8;
        worst = std::max(worst, static_cast<double>(seen[static_cast<size_t>(r)]) / ideal - 1);
      }
    }
  }
  // The excess is rounding to shards, and 128 + 384 bytes of headers for each other rank.
  EXPECT_LT(worst, 0.1);
  figure("2 to 16 ranks, 2^20 signs: bytes sent as the formula says, at most {} % above 2 (n / 8) (W - 1) / W or "
         "(n / 8) (W - 1)", 100 * worst);
}

TEST(SignCollective, NodesSendCountsAndNotBallots) {
  Rng rng(5);
  for (const int inside : {2, 4, 8}) {
    VoteCase of = random_vote(2 * inside, 1 << 20, rng);
    of.nodes = 2, of.with_presence = false, of.options.ties = "hash";
    of.weights.assign(static_cast<size_t>(of.ranks), 1);
    Ranks ranks(of);
    std::atomic<int64_t> between{0};  // bytes that node 0 sends to node 1: announcements, verdicts, counts and results
    for (auto& group : ranks.between)
      group->on_message([&](ThreadGroup::Message& m) { between += m.sender == 0 && m.receiver == 1 ? m.bytes : 0; });
    std::vector<VoteResult> results;
    for (const Ended& each : take_vote(of, ranks, &results)) ASSERT_TRUE(each.outcome.applied) << each.text;
    ASSERT_EQ(results[0], reference_vote(of));
    const int64_t part = of.count / 8 / of.ranks, planes = std::bit_width(static_cast<unsigned>(inside));
    const int64_t counts = 64 + 8 + planes * part, result = 64 + (of.ranks + 7) / 8 * 8 + part;
    ASSERT_EQ(between, inside * (3 * 128 * inside + counts + result));
    figure("nodes of {} ranks: bytes between them as the formula says; counts are {} of the ballots", inside,
           static_cast<double>(counts) / static_cast<double>(inside * (64 + part)));
  }
}

TEST(SignCollective, AutoTakesTheFasterByTheCostModelAndAgreesOnWhatItMeasures) {
  int64_t chosen[3] = {};
  for (int w = 2; w <= 6; ++w)
    for (const int64_t count : {int64_t{1024}, int64_t{1} << 16, int64_t{1} << 20}) {
      Rng rng(static_cast<uint64_t>(w * 100 + count));
      VoteCase of = random_vote(w, count, rng);
      of.with_presence = false, of.weights.assign(static_cast<size_t>(w), 1);
      of.options.latency_s = 1e-4, of.options.bytes_per_s = 1e9;
      const bool one = (w - 1) * (1 - 2.0 / w) * static_cast<double>(count / 8 + 64) < 1e5;
      for (const bool measured : {false, true}) {
        if (measured) of.options.latency_s = of.options.bytes_per_s = 0;
        Ranks ranks(of);
        std::vector<VoteResult> results(static_cast<size_t>(w), VoteResult(count));
        std::vector<double> latency(static_cast<size_t>(w)), rate(latency);
        const std::vector<Ended> ended = run_ranks(w, [&](int r) {
          const auto at = static_cast<size_t>(r);
          SignCollective collective = ranks.collective(r, of.options);
          SignOutcome outcome = collective.vote(of.ballot(r), results[at].memory());
          latency[at] = collective.latency_s(), rate[at] = collective.bytes_per_s();
          if (measured) outcome = collective.vote(of.ballot(r), results[at].memory());
          EXPECT_EQ(outcome.control_sent, 3 * 128 * (w - 1)) << "a later vote measured again";
          return outcome;
        });
        for (int r = 0; r < w; ++r) {
          const auto at = static_cast<size_t>(r);
          ASSERT_FALSE(ended[at].threw) << ended[at].text;
          ASSERT_EQ(results[at], reference_vote(of));
          ASSERT_EQ(ended[at].outcome.algorithm, ended[0].outcome.algorithm);
          ASSERT_TRUE(latency[at] > 0 && rate[at] > 0);
          ASSERT_TRUE(latency[at] == latency[0] && rate[at] == rate[0]);
          const SignAlgorithm wanted = one ? SignAlgorithm::kOnePhase : SignAlgorithm::kTwoPhase;
          ASSERT_TRUE(measured || ended[at].outcome.algorithm == wanted);
        }
        ++chosen[measured ? 0 : static_cast<int>(ended[0].outcome.algorithm)];
      }
    }
  EXPECT_TRUE(chosen[1] > 0 && chosen[2] > 0);
  figure("by given costs {} times one phase, {} times two; {} measurements agreed on by all ranks", chosen[1], chosen[2],
         chosen[0]);
}

// If one rank receives different measurements, it chooses a different algorithm. That call is refused, and the next
// call measures again.
TEST(SignCollective, ABadMeasurementIsForgotten) {
  constexpr int kRanks = 4;
  constexpr int64_t kCount = 1 << 20;
  Rng rng(12);
  VoteCase of = random_vote(kRanks, kCount, rng);
  of.weights.assign(kRanks, 1);
  of.options.latency_s = of.options.bytes_per_s = 0;
  Ranks ranks(of);
  std::vector<std::unique_ptr<SignCollective>> collectives;
  for (int r = 0; r < kRanks; ++r)
    collectives.push_back(std::make_unique<SignCollective>(ranks.collective(r, of.options)));
  std::vector<VoteResult> results(kRanks, VoteResult(kCount));
  const auto vote = [&] {
    return run_ranks(kRanks, [&](int r) {
      const auto at = static_cast<size_t>(r);
      return collectives[at]->vote(of.ballot(r), results[at].memory());
    });
  };
  int64_t changed = 0;
  ranks.inside[0]->on_message([&](ThreadGroup::Message& message) {
    wire::Measurement read;
    if (message.bytes != wire::kRecordBytes) return;
    std::memcpy(&read, message.data, sizeof read);
    if (read.prefix.round != wire::Round::kMeasure || read.latency_s == 0) return;
    // Rank 1 sees a high latency, the other ranks a low bandwidth.
    (message.receiver == 1 ? read.latency_s : read.bytes_per_s) = message.receiver == 1 ? 1e9 : 1e-30;
    wire::seal_record(&read);
    std::memcpy(message.data, &read, sizeof read);
    ++changed;
  });
  for (const Ended& each : vote()) {
    ASSERT_TRUE(each.threw);
    expect_in("ranks differ in algorithm: got two_phase on ranks 0, 2 and 3", each.text);
  }
  EXPECT_EQ(changed, kRanks * kRanks);
  ranks.inside[0]->on_message({});
  for (const Ended& each : vote()) {
    EXPECT_FALSE(each.threw) << each.text;
    EXPECT_GT(each.outcome.seconds.measure, 0);
  }
  for (const VoteResult& result : results) EXPECT_EQ(result, reference_vote(of));
  figure("{} measurements changed: one refusal, then a vote", changed);
}

TEST(SignCollective, NoVotesAndTooManyAreRefused) {
  Rng rng(9);
  for (const uint32_t weight : {0u, 1u << 30}) {
    VoteCase of = random_vote(3, 100, rng);
    of.weights.assign(3, weight);
    Ranks ranks(of);
    std::vector<VoteResult> results;
    for (const Ended& each : take_vote(of, ranks, &results)) {
      ASSERT_TRUE(each.threw);
      ASSERT_EQ(each.kind, static_cast<int>(ErrorKind::kInvalidArgument));
    }
  }
}

TEST(SignCollective, BadOptionsAndTransportsAreRefused) {
  ThreadGroup group(2, std::chrono::seconds(1));
  const auto refused = [&](auto change) {
    SignCollectiveOptions options;
    change(options);
    EXPECT_THROW(SignCollective(group.transport(0), options), Error);
  };
  refused([](auto& o) { o.ties = "coin"; });
  refused([](auto& o) { o.latency_s = 1; });
  refused([](auto& o) { o.bytes_per_s = -1; });
  refused([](auto& o) { o.threads = -1; });
  refused([](auto& o) { o.weight = 1u << 31; });
  refused([](auto& o) { o.cpu_target = "abacus"; });
  refused([](auto& o) { o.algorithm = static_cast<SignAlgorithm>(3); });
  EXPECT_THROW(SignCollective(nullptr), Error);
  EXPECT_THROW(SignCollective(group.transport(0), nullptr), Error);
  EXPECT_THROW(ThreadGroup(0, std::chrono::seconds(1)), Error);
  EXPECT_THROW(CallbackTransport(2, 2, nullptr, nullptr), Error);
  EXPECT_THROW(CallbackTransport(0, 1, nullptr, nullptr), Error);
}

}  // namespace
}  // namespace lowtide::testing
