// A ballot that cannot be made after all, and costs that were measured badly: all ranks end alike, and go on.
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>

#include "sign/wire.h"
#include "support/sign_ranks.h"

namespace lowtide {
namespace {

using testing::Ended;
using testing::Ranks;
using testing::Rng;
using testing::VoteCase;
using testing::VoteResult;

// Prepare is called once, by all; where it fails on one, by word or by throwing, nobody applies the vote, also where
// there are no signs to vote on.
TEST(SignPrepare, OneThatFailsStopsAllAlike) {
  Rng rng(11);
  int64_t cases = 0;
  for (const int nodes : {0, 2})
    for (const SignAlgorithm algorithm : {SignAlgorithm::kTwoPhase, SignAlgorithm::kOnePhase})
      for (const int64_t count : {int64_t{0}, int64_t{5000}})
        for (const int odd : {-1, 0, 3})
          for (const bool throws : {false, true}) {
            if (nodes && algorithm == SignAlgorithm::kOnePhase) continue;
            VoteCase of = testing::random_vote(4, count, rng);
            of.nodes = nodes, of.weights.assign(4, 1), of.options.algorithm = algorithm;
            Ranks ranks(of);
            std::vector<VoteResult> results(4, VoteResult(count));
            std::vector<int> called(4);
            const std::vector<Ended> ended = testing::run_ranks(4, [&](int r) {
              const auto at = static_cast<size_t>(r);
              SignCollective collective = ranks.collective(r, of.options);
              SignBallot ballot = of.ballot(r);
              ballot.prepare = [&called, at, r, odd, throws] {
                ++called[at];
                if (throws && r == odd) throw std::out_of_range("no room at " + std::to_string(r));
                return r != odd;
              };
              SignOutcome outcome;
              std::exception_ptr own;
              try {
                outcome = collective.vote(ballot, results[at].memory());
              } catch (...) {
                own = std::current_exception();
                EXPECT_EQ(results[at], VoteResult(count));
              }
              ballot.prepare = nullptr;  // the collective goes on
              EXPECT_TRUE(collective.vote(ballot, results[at].memory()).applied);
              if (own) std::rethrow_exception(own);
              return outcome;
            });
            for (int r = 0; r < 4; ++r) {
              const Ended& each = ended[static_cast<size_t>(r)];
              ASSERT_EQ(called[static_cast<size_t>(r)], 1);
              if (count) {
                ASSERT_EQ(results[static_cast<size_t>(r)], reference_vote(of));
              }
              ASSERT_EQ(each.threw, odd >= 0) << each.text;
              if (odd < 0) {
                ASSERT_TRUE(each.outcome.applied);
              } else if (r == odd && throws) {
                ASSERT_EQ(each.text, "no room at " + std::to_string(r));
              } else {
                ASSERT_EQ(each.kind, static_cast<int>(ErrorKind::kIo)) << each.text;
                ASSERT_FALSE(each.transport) << each.text;
                ASSERT_EQ(each.ranks, std::vector<int>{odd}) << each.text;
              }
            }
            ++cases;
          }
  std::printf("[ checks ] %lld votes whose ballots are made late: all ranks end alike, and vote again\n",
              static_cast<long long>(cases));
  EXPECT_EQ(cases, 36);
}

// Measurements that reached one rank only have it choose another algorithm. That call is refused; the next measures
// anew.
TEST(SignCollective, ABadMeasurementIsForgotten) {
  constexpr int kRanks = 4;
  constexpr int64_t kCount = 1 << 20;
  Rng rng(12);
  VoteCase of = testing::random_vote(kRanks, kCount, rng);
  of.weights.assign(kRanks, 1);
  of.options.latency_s = of.options.bytes_per_s = 0;
  Ranks ranks(of);
  std::vector<std::unique_ptr<SignCollective>> collectives;
  for (int r = 0; r < kRanks; ++r)
    collectives.push_back(std::make_unique<SignCollective>(ranks.collective(r, of.options)));
  std::vector<VoteResult> results(kRanks, VoteResult(kCount));
  const auto vote = [&] {
    return testing::run_ranks(kRanks, [&](int r) {
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
    // To rank 1 a call takes long, to the others a byte does.
    (message.receiver == 1 ? read.latency_s : read.bytes_per_s) = message.receiver == 1 ? 1e9 : 1e-30;
    wire::seal_record(&read);
    std::memcpy(message.data, &read, sizeof read);
    ++changed;
  });
  for (const Ended& each : vote()) {
    ASSERT_TRUE(each.threw);
    EXPECT_NE(each.text.find("ranks differ in algorithm: got two_phase on ranks 0, 2 and 3"), std::string::npos)
        << each.text;
  }
  EXPECT_EQ(changed, kRanks * kRanks);
  ranks.inside[0]->on_message({});
  for (const Ended& each : vote()) {
    EXPECT_FALSE(each.threw) << each.text;
    EXPECT_GT(each.outcome.seconds.measure, 0);
  }
  for (const VoteResult& result : results) EXPECT_EQ(result, reference_vote(of));
  std::printf("[ checks ] %lld measurements changed: one refusal, then a vote\n", static_cast<long long>(changed));
}

}  // namespace
}  // namespace lowtide
