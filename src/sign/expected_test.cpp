// Tests that after an applied vote the announcements come with the ballots, which saves a round. If a rank makes any
// other call next, all ranks end as they would without this shortcut, and the following vote is right.
#include "sign/expected.h"

#include "support/sign_faults.h"
#include "support/sign_parts.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

constexpr int kRanks = 4;

VoteCase two_phases(int64_t count, Rng& rng) {
  VoteCase of = vote_of(kRanks, 0, SignAlgorithm::kTwoPhase, count, rng);
  of.with_presence = rng.chance(0.5);
  return of;
}

// Counts the transport's calls by the messages that the hook sees.
class Calls {
 public:
  explicit Calls(Ranks& ranks) {
    ranks.inside[0]->on_message([this](ThreadGroup::Message& message) { last_ = std::max(last_, message.call + 1); });
  }
  int64_t taken() {
    const int64_t before = std::exchange(seen_, last_);
    return last_ - before;
  }

 private:
  int64_t last_ = 0, seen_ = 0;
};

// How one rank or all ranks deviate from the previous vote.
struct Deviation {
  const char* name;
  bool of_all;
  std::function<void(SignBallot&)> change;
  std::string words;  // text in the error; "" if there is no error
  bool applied;
  int64_t calls;  // expected calls of the transport
};

TEST(SignExpected, WhateverComesInsteadEndsAsWithout) {
  Rng rng = seeded("instead of what was expected", 21);
  const Deviation deviations[] = {
      {"nothing", false, [](SignBallot&) {}, "", true, 4},
      {"another weight", false, [](SignBallot& b) { b.weight = 0; }, "", true, 4},
      {"fewer signs", false, [](SignBallot& b) { b.count -= 1024; }, "ranks differ in number of signs", false, 2},
      {"fewer signs on all", true, [](SignBallot& b) { b.count -= 1024; }, "", true, 6},
      {"another step", false, [](SignBallot& b) { b.step += 1; }, "ranks differ in step", false, 1},
      {"another digest", false, [](SignBallot& b) { b.digest += 1; }, "ranks differ in digest", false, 1},
      {"another type", false, [](SignBallot& b) { b.dtype = DType::kF16; }, "ranks differ in dtype", false, 1},
      {"not finite", false, [](SignBallot& b) { b.nonfinite = true, b.bits = nullptr; }, "", false, 1},
      {"failed", false, [](SignBallot& b) { b.failed = true, b.count = 7, b.bits = nullptr; }, "", false, 1},
      {"made late", false, [](SignBallot& b) { b.prepare = [] { return true; }; }, "", true, 6},
      {"made late on all", true, [](SignBallot& b) { b.prepare = [] { return true; }; }, "", true, 6},
      {"not made", false, [](SignBallot& b) { b.prepare = [] { return false; }; }, "could not be made there", false, 6},
      {"more parts", false, [](SignBallot& b) { b.more = true; }, "ranks differ in whether more parts follow", false,
       1},
      {"a later part", false, [](SignBallot& b) { b.part = 1; }, "got part 1 of a vote after 0 parts", false, 1},
      {"bits that are not there", false, [](SignBallot& b) { b.bits = nullptr; }, "got no bits", false, 1},
  };
  int64_t votes = 0;
  for (const Deviation& d : deviations)
    for (int rank = 0; rank < kRanks; ++rank) {
      SCOPED_TRACE(std::string(d.name) + " on rank " + std::to_string(rank));
      const VoteCase of = two_phases(4096 + rng.below(6000), rng);
      Ranks ranks(of, std::chrono::milliseconds(20000));
      Calls calls(ranks);
      std::vector<int64_t> taken;
      const auto vote = [&](const std::function<void(int, SignBallot&)>& change, uint64_t step,
                            std::vector<std::unique_ptr<SignCollective>>& there, std::vector<VoteResult>& results) {
        results.assign(kRanks, VoteResult(of.count));
        const std::vector<Ended> ended = run_ranks(kRanks, [&](int r) {
          SignBallot ballot = of.ballot(r);
          ballot.step = step;
          if (change) change(r, ballot);
          return there[static_cast<size_t>(r)]->vote(ballot, results[static_cast<size_t>(r)].memory());
        });
        taken.push_back(calls.taken());
        ++votes;
        return ended;
      };
      std::vector<std::unique_ptr<SignCollective>> there;
      for (int r = 0; r < kRanks; ++r)
        there.push_back(std::make_unique<SignCollective>(ranks.collective(r, of.options)));
      std::vector<VoteResult> results;
      for (const Ended& each : vote({}, of.step, there, results)) ASSERT_TRUE(each.outcome.applied) << each.text;
      const auto change = [&](int r, SignBallot& ballot) {
        if (d.of_all || r == rank) d.change(ballot);
      };
      const std::vector<Ended> ended = vote(change, of.step, there, results);
      bool said = d.words.empty();
      for (int r = 0; r < kRanks; ++r) {
        const Ended& each = ended[static_cast<size_t>(r)];
        ASSERT_FALSE(each.transport) << each.text;
        said = said || each.text.find(d.words) != std::string::npos;
        ASSERT_EQ(each.outcome.applied, d.applied) << each.text;
        if (!d.applied) {
          ASSERT_EQ(results[static_cast<size_t>(r)], VoteResult(of.count)) << "written";
        }
      }
      ASSERT_TRUE(said) << ended[static_cast<size_t>(rank)].text;
      VoteCase now = of;
      if (std::string(d.name) == "another weight") now.weights[static_cast<size_t>(rank)] = 0;
      if (d.applied && d.calls == 4) {
        ASSERT_EQ(results[0], reference_vote(now));
      }
      const bool other_size = std::string(d.name) == "fewer signs on all";
      for (const Ended& each : vote({}, of.step, there, results)) ASSERT_TRUE(each.outcome.applied) << each.text;
      for (const VoteResult& each : results) ASSERT_EQ(each, reference_vote(of));
      const bool late = std::string(d.name).starts_with("made late");
      ASSERT_EQ(taken, (std::vector<int64_t>{5, d.calls, other_size ? 6 : late ? 5 : 4}));
    }
  figure("{} votes, {} deviations on each rank: 0 differ from the definition, all rounds as they should be", votes,
         std::size(deviations));
}

// If parts change from vote to vote, the results still match the definition; unchanged parts take two rounds each.
TEST(SignExpected, PartsThatChangeFallBack) {
  Rng rng = seeded("parts that change", 22);
  int64_t votes = 0, steady = 0;
  for (int turn = 0; turn < 40; ++turn) {
    const VoteCase of = two_phases(8192 + rng.below(4000), rng);
    Ranks ranks(of, std::chrono::milliseconds(20000));
    Calls calls(ranks);
    std::vector<std::vector<VoteCase>> all;
    for (int vote = 0; vote < 6; ++vote) {
      if (vote && rng.chance(0.5)) {
        all.push_back(all.back());
        continue;
      }
      std::vector<int64_t> cuts;
      for (int64_t at = 1024 * rng.between(1, 3); at < of.count && cuts.size() < 4; at += 1024 * rng.between(1, 4))
        cuts.push_back(at);
      all.push_back(parts_of(of, cuts));
    }
    std::vector<std::unique_ptr<SignCollective>> there;
    for (int r = 0; r < kRanks; ++r) there.push_back(std::make_unique<SignCollective>(ranks.collective(r, of.options)));
    for (size_t vote = 0; vote < all.size(); ++vote, ++votes) {
      std::vector<PartResults> results(kRanks, room_for(all[vote]));
      const std::vector<Ended> ended = run_ranks(kRanks, [&](int r) {
        const auto at = static_cast<size_t>(r);
        return vote_in_parts(*there[at], all[vote], r, results[at]);
      });
      for (const Ended& each : ended) ASSERT_TRUE(each.outcome.applied) << each.text;
      for (const PartResults& each : results) ASSERT_EQ(joined(each), reference_vote(of));
      const int64_t taken = calls.taken();
      const auto parts = std::ssize(all[vote]);
      const bool same = vote > 0 && all[vote].size() == all[vote - 1].size() &&
                        std::equal(all[vote].begin(), all[vote].end(), all[vote - 1].begin(),
                                   [](const VoteCase& a, const VoteCase& b) { return a.count == b.count; });
      if (same) {
        ASSERT_EQ(taken, 2 * parts + 2);
        ++steady;
      }
    }
  }
  EXPECT_GT(steady, 20);
  figure("{} votes in parts, {} of them cut as the one before, in 2 rounds a part and 2 more: 0 differ", votes, steady);
}

}  // namespace
}  // namespace lowtide::testing
