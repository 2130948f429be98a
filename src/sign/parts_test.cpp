// Votes in parts: the bits of one call, fewer rounds, and one end for all ranks and all parts.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/share.h"
#include "support/sign_parts.h"

namespace lowtide {
namespace {

using testing::Ended;
using testing::PartResults;
using testing::parts_of;
using testing::Ranks;
using testing::Rng;
using testing::room_for;
using testing::vote_in_parts;
using testing::VoteCase;
using testing::VoteResult;

std::vector<int64_t> random_cuts(int64_t count, Rng& rng) {
  std::vector<int64_t> cuts;
  for (int64_t i = rng.below(6); i > 0; --i) cuts.push_back(rng.below(count / 1024 + 1) * 1024);
  std::sort(cuts.begin(), cuts.end());  // equal ones make parts without signs
  return cuts;
}

TEST(SignParts, TheBitsAreThoseOfOneCall) {
  Rng rng = testing::seeded("votes in parts", 20261123);
  int64_t votes = 0, parts_taken = 0, signs = 0, empty = 0;
  for (int i = 0; i < testing::share_of(600); ++i) {
    const int nodes = i % 3 == 0 ? static_cast<int>(rng.between(1, 3)) : 0;
    const int ranks = nodes ? nodes * static_cast<int>(rng.between(1, 3)) : static_cast<int>(rng.between(1, 6));
    VoteCase of = testing::random_vote(ranks, rng.below(12000), rng);
    of.nodes = nodes;
    of.options.algorithm = static_cast<SignAlgorithm>(nodes ? 2 * rng.below(2) : i % 3 == 1 ? 1 : 2 * rng.below(2));
    of.options.commit = rng.chance(0.8);
    if (std::all_of(of.weights.begin(), of.weights.end(), [](uint32_t w) { return w == 0; })) of.weights[0] = 1;
    const std::vector<VoteCase> parts = parts_of(of, random_cuts(of.count, rng));
    const VoteResult wanted = reference_vote(of);
    Ranks transports(of);
    std::vector<PartResults> results(static_cast<size_t>(ranks), room_for(parts));
    std::vector<VoteResult> whole(static_cast<size_t>(ranks), VoteResult(of.count));
    const std::vector<Ended> ended = testing::run_ranks(ranks, [&](int r) {
      const auto at = static_cast<size_t>(r);
      SignCollective collective = transports.collective(r, of.options);
      std::vector<SignOutcome> outcomes;
      vote_in_parts(collective, parts, r, results[at], &outcomes);
      for (size_t p = 0; p < outcomes.size(); ++p) {
        EXPECT_TRUE(outcomes[p].applied && outcomes[p].rejected.empty());
        const int rounds = p + 1 < parts.size() ? 1 : 2 + of.options.commit;
        if (!nodes) {
          EXPECT_EQ(outcomes[p].control_sent, rounds * 128 * (ranks - 1)) << "part " << p << " of " << parts.size();
        }
      }
      return collective.vote(of.ballot(r), whole[at].memory());
    });
    for (int r = 0; r < ranks; ++r) {
      const auto at = static_cast<size_t>(r);
      ASSERT_FALSE(ended[at].threw) << ended[at].text;
      ASSERT_EQ(testing::joined(results[at]), wanted) << "case " << i << ", rank " << r;
      ASSERT_EQ(whole[at], wanted);
    }
    ++votes, parts_taken += std::ssize(parts), signs += of.count;
    for (const VoteCase& part : parts) empty += part.count == 0;
  }
  std::printf(
      "[ checks ] %lld votes on %lld signs in %lld parts, %lld of these without signs: the bits of one call and of the "
      "definition on all ranks, and a confirm and a commit for each vote\n",
      static_cast<long long>(votes), static_cast<long long>(signs), static_cast<long long>(parts_taken),
      static_cast<long long>(empty));
}

VoteCase case_of(int ranks, int nodes, int64_t count, Rng& rng) {
  VoteCase of = testing::random_vote(ranks, count, rng);
  of.nodes = nodes, of.with_presence = false, of.weights.assign(static_cast<size_t>(ranks), 1), of.step = 5;
  of.options.ties = "hash", of.options.algorithm = SignAlgorithm::kTwoPhase, of.options.threads = 1;
  return of;
}

// One rank stops the vote in one of its parts: nobody goes on, and the next vote has nothing of this one.
TEST(SignParts, WhatStopsAPartStopsTheVoteOnAllRanks) {
  enum What { kNonfinite, kFailed, kWrong, kPrepareSaysNo, kPrepareThrows };
  Rng rng(13);
  int64_t cases = 0;
  for (const int nodes : {0, 2})
    for (const size_t where : {0u, 1u, 2u})
      for (const int odd : {0, 3})
        for (const What what : {kNonfinite, kFailed, kWrong, kPrepareSaysNo, kPrepareThrows}) {
          const VoteCase of = case_of(4, nodes, 7000, rng);
          VoteCase next = case_of(4, nodes, 3000, rng);
          next.options = of.options;
          const std::vector<VoteCase> parts = parts_of(of, {2048, 4096});
          Ranks ranks(of);
          std::vector<VoteResult> results(4, VoteResult(3000));
          std::vector<size_t> taken(4);
          const std::vector<Ended> ended = testing::run_ranks(4, [&](int r) {
            const auto at = static_cast<size_t>(r);
            SignCollective collective = ranks.collective(r, of.options);
            PartResults room = room_for(parts);
            std::vector<SignOutcome> outcomes;
            SignOutcome outcome;
            std::exception_ptr own;
            try {
              outcome = vote_in_parts(collective, parts, r, room, &outcomes, [&](size_t part, SignBallot& ballot) {
                if (part != where || r != odd) return;
                if (what == kNonfinite) ballot.nonfinite = true;
                if (what == kFailed) ballot = {}, ballot.failed = true;
                if (what == kWrong) ballot.bits = nullptr;
                if (what == kPrepareSaysNo) ballot.prepare = [] { return false; };
                if (what == kPrepareThrows) ballot.prepare = []() -> bool { throw std::out_of_range("no room"); };
              });
            } catch (...) {
              own = std::current_exception();
            }
            taken[at] = outcomes.size();
            EXPECT_TRUE(collective.vote(next.ballot(r), results[at].memory()).applied);
            if (own) std::rethrow_exception(own);
            return outcome;
          });
          const bool prepares = what == kPrepareSaysNo || what == kPrepareThrows;
          const bool last_prepares = prepares && where == 2;  // then the rounds around it tell
          for (int r = 0; r < 4; ++r) {
            const Ended& each = ended[static_cast<size_t>(r)];
            ASSERT_EQ(results[static_cast<size_t>(r)], reference_vote(next)) << "something of the earlier vote";
            if (r == odd && (what == kWrong || what == kPrepareThrows)) {
              ASSERT_EQ(each.text, what == kWrong ? "got no bits for " + std::to_string(parts[where].count) + " signs"
                                                  : "no room");
              continue;
            }
            if (last_prepares) {
              ASSERT_TRUE(each.threw && !each.transport && each.ranks == std::vector<int>{odd}) << each.text;
              continue;
            }
            ASSERT_FALSE(each.threw) << each.text;
            ASSERT_FALSE(each.outcome.applied);
            ASSERT_EQ(each.outcome.nonfinite, what == kNonfinite ? std::vector<int>{odd} : std::vector<int>{});
            ASSERT_EQ(each.outcome.failed, what != kNonfinite ? std::vector<int>{odd} : std::vector<int>{});
            ASSERT_EQ(taken[static_cast<size_t>(r)], where + 1 + prepares) << "the part that all heard of it in";
          }
          ++cases;
        }
  std::printf(
      "[ checks ] %lld votes in parts that one rank stopped: all ranks in the same part, and the next is right\n",
      static_cast<long long>(cases));
}

// Ranks that are at different parts, or disagree on whether others follow.
TEST(SignParts, RanksThatDisagreeAboutPartsAreRefusedAlike) {
  struct Difference {
    const char* text;
    testing::Change change;  // of the second part of three, on one rank
  };
  const Difference differences[] = {
      {"parts before: got 1 on ranks", [](size_t, SignBallot& ballot) { ballot.part = 0; }},
      {"whether more parts follow: got yes on ranks", [](size_t, SignBallot& ballot) { ballot.more = false; }},
      {"step: got 5 on ranks", [](size_t, SignBallot& ballot) { ballot.part = 0, ballot.step = 6; }},
  };
  Rng rng(14);
  int64_t cases = 0;
  for (const Difference& difference : differences)
    for (const int nodes : {0, 3})
      for (const int odd : {0, 5}) {
        const VoteCase of = case_of(6, nodes, 7000, rng);
        const std::vector<VoteCase> parts = parts_of(of, {2048, 4096});
        Ranks ranks(of);
        std::vector<VoteResult> results(6, VoteResult(of.count));
        const std::vector<Ended> ended = testing::run_ranks(6, [&](int r) {
          SignCollective collective = ranks.collective(r, of.options);
          PartResults room = room_for(parts);
          std::exception_ptr own;
          try {
            vote_in_parts(collective, parts, r, room, nullptr, [&](size_t part, SignBallot& ballot) {
              if (part == 1 && r == odd) difference.change(part, ballot);
            });
          } catch (...) {
            own = std::current_exception();
          }
          EXPECT_TRUE(collective.vote(of.ballot(r), results[static_cast<size_t>(r)].memory()).applied);
          if (own) std::rethrow_exception(own);
          return SignOutcome{};
        });
        for (int r = 0; r < 6; ++r) {
          const Ended& each = ended[static_cast<size_t>(r)];
          ASSERT_TRUE(each.threw && !each.transport);
          ASSERT_EQ(each.kind, static_cast<int>(ErrorKind::kInvalidArgument)) << each.text;
          ASSERT_EQ(each.text, ended[0].text);
          ASSERT_NE(each.text.find(difference.text), std::string::npos) << each.text;
          ASSERT_EQ(each.ranks, std::vector<int>{odd});
          ASSERT_EQ(results[static_cast<size_t>(r)], reference_vote(of));
        }
        ++cases;
      }
  std::printf("[ checks ] %lld groups with one odd rank: one error on all 6, and the next vote is right\n",
              static_cast<long long>(cases));
}

// A part that does not follow from this rank's own calls, and a mean with more to come: its own error, announced.
TEST(SignParts, ARankThatContradictsItselfIsToldAndTheOthersHearOfIt) {
  Rng rng(15);
  const VoteCase of = case_of(3, 0, 3000, rng);
  Ranks ranks(of);
  std::vector<std::string> texts(3);
  const auto ended = testing::run_ranks(3, [&](int r) {
    SignCollective collective = ranks.collective(r, of.options);
    VoteResult room(3000);
    std::vector<uint16_t> scales(3, 0x3f80);
    SignResidual residual(3000, r, 3);
    const auto refused = [&](bool mean, const std::function<void(SignBallot&)>& change) {
      SignBallot ballot = of.ballot(r);
      SignResult result = room.memory();
      if (mean) ballot.scales = result.scales = scales.data();
      if (r == 1) change(ballot);
      try {
        const SignOutcome outcome = mean ? collective.mean(ballot, result, residual) : collective.vote(ballot, result);
        EXPECT_TRUE(!outcome.applied && outcome.failed == std::vector<int>{1});
      } catch (const Error& error) {
        EXPECT_EQ(r, 1);
        texts[static_cast<size_t>(r)] += std::string(error.what()) + "; ";
      }
    };
    refused(false, [](SignBallot& ballot) { ballot.part = 2; });
    refused(true, [](SignBallot& ballot) { ballot.more = true; });
    SignBallot first = of.ballot(r);
    first.more = true;
    EXPECT_TRUE(collective.vote(first, room.memory()).applied);
    refused(false, [](SignBallot& ballot) { ballot.part = 1, ballot.step = 6; });
    return collective.vote(of.ballot(r), room.memory());
  });
  EXPECT_EQ(texts[1],
            "got part 2 of a vote after 0 parts; part 0 begins a new vote; "
            "got a mean with more parts to follow, wanted a vote: its residual would have changed; "
            "got a part of step 6, wanted step 5 of the first; ");
  EXPECT_EQ(texts[0] + texts[2], "");
  for (const Ended& each : ended) EXPECT_TRUE(!each.threw && each.outcome.applied) << each.text;
}

}  // namespace
}  // namespace lowtide
