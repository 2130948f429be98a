// Tests that a vote in parts has the bits of a vote in one call, takes fewer rounds than separate votes, and ends in
// the same way on all ranks and for all parts.
#include "support/sign_faults.h"
#include "support/sign_parts.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

std::vector<int64_t> random_cuts(int64_t count, Rng& rng) {
  std::vector<int64_t> cuts;
  for (int64_t i = rng.below(6); i > 0; --i) cuts.push_back(rng.below(count / 1024 + 1) * 1024);
  std::sort(cuts.begin(), cuts.end());  // equal cuts make parts without signs
  return cuts;
}

int64_t random_count(Rng& rng) {
  static const int64_t borders[] = {0, 1, 7, 8, 63, 64, 65, 512, 1023, 1024, 1025, 2048, 9216, 9217};
  if (rng.chance(0.4)) return borders[rng.below(std::size(borders))];
  return rng.chance(0.01) ? rng.below(300000) : rng.below(rng.chance(0.1) ? 30000 : 6000);
}

TEST(SignParts, TheBitsAreThoseOfOneCall) {
  Rng rng = seeded("votes in parts", 20261123);
  int64_t votes = 0, parts_taken = 0, signs = 0;
  for (int i = 0; i < share_of(1200); ++i) {
    const int nodes = i % 3 == 0 ? static_cast<int>(rng.between(1, 3)) : 0;
    const int ranks = nodes ? nodes * static_cast<int>(rng.between(1, 3)) : static_cast<int>(rng.between(1, 9));
    VoteCase of = random_vote(ranks, random_count(rng), rng);
    of.nodes = nodes;
    of.options.algorithm = static_cast<SignAlgorithm>(nodes ? 2 * rng.below(2) : i % 3 == 1 ? 1 : 2 * rng.below(2));
    of.options.commit = rng.chance(0.8);
    if (std::all_of(of.weights.begin(), of.weights.end(), [](uint32_t w) { return w == 0; })) of.weights[0] = 1;
    const std::vector<VoteCase> parts = parts_of(of, random_cuts(of.count, rng));
    const VoteResult wanted = reference_vote(of);
    Ranks transports(of);
    std::vector<PartResults> results(static_cast<size_t>(ranks), room_for(parts));
    std::vector<VoteResult> whole(static_cast<size_t>(ranks), VoteResult(of.count));
    const std::vector<Ended> ended = run_ranks(ranks, [&](int r) {
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
      ASSERT_EQ(joined(results[at]), wanted) << "case " << i << ", rank " << r;
      ASSERT_EQ(whole[at], wanted);
    }
    ++votes, signs += of.count, parts_taken += std::ssize(parts);
  }
  figure("{} votes on {} signs in {} parts: the bits of one call and of the definition on all ranks", votes, signs,
         parts_taken);
}

VoteCase case_of(int ranks, int nodes, SignAlgorithm algorithm, int64_t count, Rng& rng) {
  VoteCase of = vote_of(ranks, nodes, algorithm, count, rng);
  of.with_presence = false, of.first_index = 0, of.step = 5;
  of.options.ties = "hash", of.options.seed = 9;
  return of;
}

// Takes a vote in parts, which may end in an exception, and then another vote. Rethrows the first vote's exception.
SignOutcome vote_and_go_on(SignCollective& collective, const std::vector<VoteCase>& parts, int rank, PartResults& room,
                           std::vector<SignOutcome>& outcomes, const Change& change, const VoteCase& next,
                           VoteResult& result) {
  SignOutcome outcome;
  std::exception_ptr own;
  try {
    outcome = vote_in_parts(collective, parts, rank, room, &outcomes, change);
  } catch (...) {
    own = std::current_exception();
  }
  EXPECT_TRUE(collective.vote(next.ballot(rank), result.memory()).applied);
  if (own) std::rethrow_exception(own);
  return outcome;
}

// If one rank stops the vote in any part, no rank goes on, no result is written, and the next vote is not affected. All
// ranks may also make a ballot late; they make it once, even if there are no signs to vote on.
TEST(SignParts, WhatStopsAPartStopsTheVoteOnAllRanks) {
  enum What { kNothing, kNonfinite, kFailed, kWrong, kPrepareSaysNo, kPrepareThrows };
  constexpr int kRanks = 4;
  struct Vote {
    int nodes;
    SignAlgorithm algorithm;
    int64_t count;
    std::vector<int64_t> cuts;
  };
  const Vote votes[] = {{0, SignAlgorithm::kAuto, 5000, {}},
                        {2, SignAlgorithm::kAuto, 5000, {}},
                        {0, SignAlgorithm::kOnePhase, 5000, {}},
                        {0, SignAlgorithm::kTwoPhase, 0, {}},
                        {0, SignAlgorithm::kOnePhase, 0, {}},
                        {2, SignAlgorithm::kTwoPhase, 0, {}},
                        {0, SignAlgorithm::kTwoPhase, 7000, {2048, 4096}},
                        {2, SignAlgorithm::kTwoPhase, 7000, {2048, 4096}}};
  Rng rng(13);
  int64_t cases = 0;
  for (const Vote& vote : votes)
    for (size_t where = 0; where <= vote.cuts.size(); ++where)
      for (int odd = 0; odd < kRanks; ++odd)
        for (const What what : {kNothing, kNonfinite, kFailed, kWrong, kPrepareSaysNo, kPrepareThrows}) {
          if (what == kWrong && vote.count == 0) continue;  // no bits are needed
          SCOPED_TRACE(::testing::Message() << vote.nodes << " nodes, " << vote.count << " signs, part " << where
                                            << ", rank " << odd << ", " << what);
          const VoteCase of = case_of(kRanks, vote.nodes, vote.algorithm, vote.count, rng);
          VoteCase next = case_of(kRanks, vote.nodes, vote.algorithm, 3000, rng);
          const std::vector<VoteCase> parts = parts_of(of, vote.cuts);
          const bool whole = parts.size() == 1;
          Ranks ranks(of);
          std::vector<PartResults> rooms(kRanks, room_for(parts));
          std::vector<VoteResult> results(kRanks, VoteResult(3000));
          std::vector<std::vector<SignOutcome>> outcomes(kRanks);
          std::vector<int> called(kRanks);
          const std::vector<Ended> ended = run_ranks(kRanks, [&](int r) {
            const auto at = static_cast<size_t>(r);
            SignCollective collective = ranks.collective(r, of.options);
            const auto change = [&](size_t part, SignBallot& ballot) {
              if (part != where || (r != odd && !whole)) return;
              if (what == kPrepareSaysNo || what == kPrepareThrows || what == kNothing)
                ballot.prepare = [&, r] {
                  ++called[static_cast<size_t>(r)];
                  if (what == kPrepareThrows && r == odd) throw std::out_of_range("no room");
                  return what == kNothing || r != odd;
                };
              if (r != odd) return;
              if (what == kNonfinite) ballot.nonfinite = true;
              if (what == kFailed) ballot = {}, ballot.failed = true;
              if (what == kWrong) ballot.bits = nullptr;
            };
            return vote_and_go_on(collective, parts, r, rooms[at], outcomes[at], change, next, results[at]);
          });
          const bool prepares = what == kPrepareSaysNo || what == kPrepareThrows;
          for (int r = 0; r < kRanks; ++r) {
            const auto at = static_cast<size_t>(r);
            const Ended& each = ended[at];
            ASSERT_EQ(results[at], reference_vote(next)) << "something of the earlier vote";
            if (whole) {
              ASSERT_EQ(called[at], prepares || what == kNothing);
              ASSERT_TRUE(what == kNothing || rooms[at][0] == VoteResult(of.count)) << "written";
            }
            if (what == kNothing) {
              ASSERT_TRUE(each.outcome.applied) << each.text;
              ASSERT_EQ(joined(rooms[at]), reference_vote(of));
              continue;
            }
            if (r == odd && (what == kWrong || what == kPrepareThrows)) {
              ASSERT_EQ(each.text, what == kWrong ? "got no bits for " + std::to_string(parts[where].count) + " signs"
                                                  : "no room");
              continue;
            }
            if (prepares && where == vote.cuts.size()) {  // all ranks learn of it in the control rounds
              ASSERT_TRUE(each.threw && !each.transport && each.ranks == std::vector<int>{odd}) << each.text;
              ASSERT_EQ(each.kind, static_cast<int>(ErrorKind::kIo)) << each.text;
              continue;
            }
            ASSERT_FALSE(each.threw) << each.text;
            ASSERT_FALSE(each.outcome.applied);
            ASSERT_EQ(each.outcome.nonfinite, what == kNonfinite ? std::vector<int>{odd} : std::vector<int>{});
            ASSERT_EQ(each.outcome.failed, what != kNonfinite ? std::vector<int>{odd} : std::vector<int>{});
            ASSERT_EQ(outcomes[at].size(), where + 1 + prepares) << "the part that all heard of it in";
            ASSERT_TRUE(!whole || each.outcome.payload_sent == 0);
          }
          ++cases;
        }
  figure("{} votes that one rank stops, or not: unanimous, and the next vote is right", cases);
}

// If one rank differs in one property of a vote, or of the second of three parts, all ranks throw the same text, which
// names the rank and both values. Nothing is written, and the next vote is right.
TEST(SignParts, RanksThatDifferAreRefusedByAllAlike) {
  using Options = SignCollectiveOptions;
  struct Difference {
    const char* text;  // of the error
    std::function<void(SignBallot&)> make;
    std::function<void(Options&)> option = nullptr;
    size_t part = 0;
  };
  const Difference differences[] = {
      {"step: got 5 on ranks", [](SignBallot& b) { b.step = 6; }},
      {"number of signs: got 7000 on ranks", [](SignBallot& b) { b.count = 6999; }},
      {"dtype: got float32 on ranks", [](SignBallot& b) { b.dtype = DType::kBF16; }},
      {"digest", [](SignBallot& b) { b.digest ^= 1; }},
      {"first index: got 0 on ranks", [](SignBallot& b) { b.first_index = 1024; }},
      {"presence: got no on ranks", [](SignBallot& b) { b.presence = b.bits; }},
      {"ties: got hash on ranks", {}, [](Options& o) { o.ties = "plus"; }},
      {"seed: got 9 on ranks", {}, [](Options& o) { o.seed = 8; }},
      {"commit: got yes on ranks", {}, [](Options& o) { o.commit = false; }},
      {"algorithm: got two_phase on ranks", {}, [](Options& o) { o.algorithm = SignAlgorithm::kOnePhase; }},
      {"where they are in the call: got announcing a vote on ranks",
       {},
       [](Options& o) { o.algorithm = SignAlgorithm::kAuto, o.latency_s = o.bytes_per_s = 0; }},
      {"parts before: got 1 on ranks", [](SignBallot& b) { b.part = 0; }, {}, 1},
      {"whether more parts follow: got yes on ranks", [](SignBallot& b) { b.more = false; }, {}, 1},
      {"step: got 5 on ranks", [](SignBallot& b) { b.part = 0, b.step = 6; }, {}, 1},
  };
  constexpr int kRanks = 6;
  Rng rng(14);
  int64_t cases = 0;
  for (const Difference& difference : differences)
    for (const int nodes : {0, 3})
      for (const int odd : {0, 2, 5}) {
        const std::string text = difference.text;
        // Measurements and the choice of an algorithm exist only with one transport.
        if (nodes && (text.starts_with("algorithm") || text.starts_with("where"))) continue;
        SCOPED_TRACE(text + ", " + std::to_string(nodes) + " nodes, rank " + std::to_string(odd));
        const VoteCase of = case_of(kRanks, nodes, SignAlgorithm::kTwoPhase, 7000, rng);
        const std::vector<VoteCase> parts =
            parts_of(of, difference.part ? std::vector<int64_t>{2048, 4096} : std::vector<int64_t>{});
        Ranks ranks(of);
        std::vector<PartResults> rooms(kRanks, room_for(parts));
        std::vector<VoteResult> results(kRanks, VoteResult(of.count));
        const std::vector<Ended> ended = run_ranks(kRanks, [&](int r) {
          const auto at = static_cast<size_t>(r);
          Options options = of.options;
          if (r == odd && difference.option) difference.option(options);
          SignCollective collective = ranks.collective(r, options);
          const auto change = [&](size_t part, SignBallot& ballot) {
            if (part == difference.part && r == odd && difference.make) difference.make(ballot);
          };
          std::vector<SignOutcome> outcomes;
          if (difference.option) return vote_in_parts(collective, parts, r, rooms[at], &outcomes, change);
          return vote_and_go_on(collective, parts, r, rooms[at], outcomes, change, of, results[at]);
        });
        for (int r = 0; r < kRanks; ++r) {
          const auto at = static_cast<size_t>(r);
          const Ended& each = ended[at];
          ASSERT_TRUE(each.threw && !each.transport);
          ASSERT_EQ(each.kind, static_cast<int>(ErrorKind::kInvalidArgument)) << each.text;
          ASSERT_EQ(each.text, ended[0].text);
          expect_in(text, each.text);
          expect_in("on rank " + std::to_string(odd), each.text);
          ASSERT_EQ(each.ranks, std::vector<int>{odd});
          ASSERT_TRUE(difference.part || rooms[at][0] == VoteResult(of.count)) << "written";
          ASSERT_EQ(results[at], difference.option ? VoteResult(of.count) : reference_vote(of));
        }
        ++cases;
      }
  figure("{} groups with one odd rank: one error on all 6, nothing written", cases);
}

// A part that does not follow this rank's previous calls, or a mean with more parts to come, is this rank's error, and
// it announces it.
TEST(SignParts, ARankThatContradictsItselfIsToldAndTheOthersHearOfIt) {
  Rng rng(15);
  const VoteCase of = case_of(3, 0, SignAlgorithm::kTwoPhase, 3000, rng);
  Ranks ranks(of);
  std::vector<std::string> texts(3);
  const auto ended = run_ranks(3, [&](int r) {
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
            "got a mean with more parts to follow, wanted one part: the first would already change the residual; "
            "got a part of step 6, wanted step 5 like the first part; ");
  EXPECT_EQ(texts[0] + texts[2], "");
  for (const Ended& each : ended) EXPECT_TRUE(!each.threw && each.outcome.applied) << each.text;
}

}  // namespace
}  // namespace lowtide::testing
