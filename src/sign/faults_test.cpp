// Tests that no two ranks end with different results: either all ranks apply all parts or no rank applies any. A rank
// dies at each call, and each message of each part of a vote is damaged, cut off, late or replaced by another message.
#include "support/sign_faults.h"
#include "support/sign_parts.h"
#include "support/test.h"

namespace lowtide::testing {
namespace {

// A machine's time for a message: 0.9 seconds, times LOWTIDE_TEST_PATIENCE, which the preset for qemu sets.
std::chrono::milliseconds patience() {
  const char* const times = std::getenv("LOWTIDE_TEST_PATIENCE");
  return std::chrono::milliseconds(900) * (times ? std::atoi(times) : 1);
}

// Returns a vote in one part or in three. Equal parts have messages of equal sizes, so one part's message can arrive in
// place of another part's.
std::vector<VoteCase> in_parts(const VoteCase& of, int64_t parts, bool equal, Rng& rng) {
  if (parts == 1) return {of};
  const int64_t third = of.count / 3 / 1024 * 1024;
  return parts_of(
      of, equal ? std::vector<int64_t>{third, 2 * third} : std::vector<int64_t>{1024 * rng.below(2), third + 1024});
}

// Deaths -------------------------------------------------------------------------------------------------------------

// A rank dies at one call of one of its transports, in the first vote or in the one after it.
struct Death {
  SignAlgorithm algorithm;
  int ranks, nodes;
  int64_t parts;
  int dead;
  bool between;
  int64_t call;
  bool after_sending, first;
};

// Checks that the other ranks either have the right result or throw; adds 1 to `right` if any of them has the result.
void expect_survived(const Death& d, Rng& rng, std::atomic<int64_t>& right) {
  const VoteCase of = vote_of(d.ranks, d.nodes, d.algorithm, 5000, rng);
  const std::vector<VoteCase> parts = in_parts(of, d.parts, false, rng);
  Ranks ranks(of, patience());
  const int inside = of.nodes ? of.ranks / of.nodes : of.ranks;
  ThreadGroup& group = d.between ? *ranks.between[static_cast<size_t>(d.dead % inside)]
                                 : *ranks.inside[static_cast<size_t>(d.dead / inside)];
  group.kill(d.between ? d.dead / inside : d.dead % inside, d.call + (d.first ? 0 : of.calls(true, d.parts)),
             d.after_sending);
  std::vector<PartResults> results(static_cast<size_t>(of.ranks), room_for(parts));
  const std::vector<Ended> ended = run_ranks(of.ranks, [&](int r) {
    SignCollective collective = ranks.collective(r, of.options);
    PartResults earlier = room_for(parts);
    if (!d.first) {
      EXPECT_TRUE(vote_in_parts(collective, parts, r, earlier).applied);
    }
    return vote_in_parts(collective, parts, r, results[static_cast<size_t>(r)]);
  });
  int64_t succeeded = 0, named = 0;
  for (int r = 0; r < of.ranks; ++r) {
    const Ended& each = ended[static_cast<size_t>(r)];
    const VoteResult result = joined(results[static_cast<size_t>(r)]);
    if (!each.threw) {
      ASSERT_NE(r, d.dead);
      ASSERT_EQ(result, reference_vote(of));
      ++succeeded;
      continue;
    }
    ASSERT_TRUE(each.transport) << each.text;
    ASSERT_FALSE(each.ranks.empty()) << each.text;
    named += each.ranks == std::vector<int>{d.dead};
    if (d.parts == 1) {
      ASSERT_EQ(result, VoteResult(of.count)) << "written, though it threw";
    }
  }
  if (!of.nodes) {
    // Over one transport all other ranks see the same messages; they succeed if the dead rank had sent everything.
    const bool said_all = d.call == of.calls(d.first, d.parts) - 1 && d.after_sending;
    ASSERT_EQ(succeeded, said_all ? of.ranks - 1 : 0) << "call " << d.call;
    ASSERT_EQ(named + succeeded, of.ranks);
  } else {
    ASSERT_TRUE(succeeded > 0 || named > 0);
  }
  right += succeeded > 0;
}

TEST(SignFaults, ARankThatDiesAtAnyCallHangsNobody) {
  constexpr SignAlgorithm kOne = SignAlgorithm::kOnePhase, kTwo = SignAlgorithm::kTwoPhase;
  std::vector<Death> deaths;
  // Every share keeps the deaths of the first rank at the last call: some of them leave the others the right result.
  int64_t grid = 0;
  const auto add = [&](const Death& d, int64_t calls) {
    if ((d.nodes == 0 && d.dead == 0 && d.call == calls - 1) || in_share(grid++)) deaths.push_back(d);
  };
  Rng none(0);
  for (const bool after : {false, true}) {
    for (const int64_t parts : {1, 3})
      for (const auto& [algorithm, first] : {std::pair{kOne, true}, {kTwo, true}, {kTwo, false}}) {
        if (parts > 1 && !first) continue;
        const int ranks = parts > 1 ? 4 : 5;
        const int64_t calls = vote_of(ranks, 0, algorithm, 1, none).calls(first, parts);
        for (int dead = 0; dead < ranks; ++dead)
          for (int64_t call = 0; call < calls; ++call)
            add({algorithm, ranks, 0, parts, dead, false, call, after, first}, calls);
      }
    for (const int dead : {0, 4})
      for (int64_t call = 0; call < 5; ++call)
        for (const bool between : {false, true}) add({kTwo, 6, 2, 1, dead, between, call, after, true}, 5);
  }
  // The cases mostly wait, so run many at a time.
  std::atomic<size_t> next{0};
  std::atomic<int64_t> right{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 20; ++t)
    threads.emplace_back([&] {
      for (size_t i; (i = next.fetch_add(1)) < deaths.size();) {
        Rng rng(i);
        expect_survived(deaths[i], rng, right);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(right, 0);
  figure("{} deaths at every call: {} times the others had all it said and the right result, else they threw in time",
         deaths.size(), right.load());
}

// Damage -------------------------------------------------------------------------------------------------------------

struct Tally {
  int64_t cases = 0, right = 0, without = 0, refused = 0, timed_out = 0;
};

struct Hit {
  bool between;
  int64_t call;  // of the vote
  Damage damage;
  bool of_part_before;  // for kLate: send the message from the same round of the previous part or vote
  int sender;
  Damager::Receivers receivers;
};

// Return the number of calls of a vote that follows other votes, and of each part; two calls are for the whole vote.
int64_t vote_calls(const VoteCase& of, int64_t parts) { return of.calls(false, parts); }
int64_t part_calls(const VoteCase& of, int64_t parts) { return (vote_calls(of, parts) - 2) / parts; }

// Takes four votes over the same transports: the first, one whose announcements come with the ballots, the same with
// damage, and one in a single call.
void damaged_vote(const VoteCase& of, int64_t number, const Hit& d, Rng& rng, Tally* tally) {
  const int64_t of_part = part_calls(of, number), calls = vote_calls(of, number);
  const bool announces = d.call % of_part == 0 && d.call < number * of_part;
  // A valid announcement of an earlier step stops the ranks that receive it at once; the other ranks wait for them
  // until the timeout.
  const bool stops_some = announces && d.damage == Damage::kLate;
  Ranks ranks(of, stops_some ? patience() : std::chrono::milliseconds(30000));
  const int inside = of.nodes ? of.ranks / of.nodes : of.ranks;
  ThreadGroup& group = d.between ? *ranks.between[static_cast<size_t>(d.sender % inside)]
                                 : *ranks.inside[static_cast<size_t>(d.sender / inside)];
  const int size = d.between ? of.nodes : inside, sender = d.between ? d.sender / inside : d.sender % inside;
  const int receiver = static_cast<int>((sender + 1 + rng.below(size - 1)) % size);
  const int64_t calls_before = of.calls(true, number) + (of.early() ? calls : 0);
  Damager damager(group, d.damage, sender, receiver, d.receivers, calls_before + d.call,
                  d.of_part_before ? of_part : calls, rng);
  const std::vector<VoteCase> parts = in_parts(of, number, d.damage == Damage::kLate || rng.chance(0.5), rng);
  std::vector<VoteCase> before = parts;
  for (VoteCase& part : before) part.step -= 1;
  const auto count = static_cast<size_t>(of.ranks);
  std::vector<PartResults> results(count, room_for(parts));
  std::vector<VoteResult> after(count, VoteResult(of.count));
  std::vector<std::vector<SignOutcome>> outcomes(count);
  const std::vector<Ended> ended = run_ranks(of.ranks, [&](int r) {
    const auto at = static_cast<size_t>(r);
    SignCollective collective = ranks.collective(r, of.options);
    for (int votes = of.early() ? 2 : 1; votes > 0; --votes) {
      PartResults room = room_for(parts);
      EXPECT_TRUE(vote_in_parts(collective, before, r, room).applied);
    }
    SignOutcome outcome;
    std::exception_ptr own;
    try {
      outcome = vote_in_parts(collective, parts, r, results[at], &outcomes[at]);
    } catch (const CollectiveError&) {
      own = std::current_exception();
    }
    if (!stops_some) {
      EXPECT_TRUE(collective.vote(of.ballot(r), after[at].memory()).applied);
    }
    if (own) std::rethrow_exception(own);
    return outcome;
  });
  ASSERT_GT(damager.changed(), 0) << "nothing was damaged";
  ++tally->cases;
  int threw = 0;
  bool rejected = false, transport = false, named = false;
  for (const Ended& each : ended) threw += each.threw, transport |= each.transport;
  ASSERT_TRUE(threw == 0 || threw == of.ranks) << "some applied what others did not: " << threw;
  for (size_t r = 0; r < count; ++r) {
    const Ended& each = ended[r];
    if (!stops_some) {
      ASSERT_EQ(after[r], reference_vote(of)) << "something of the vote before";
    }
    if (each.threw) {
      if (number == 1) {
        ASSERT_EQ(results[r][0], VoteResult(of.count)) << "written, though it threw";
      }
      if (stops_some) continue;
      ASSERT_FALSE(each.transport || each.ranks.empty()) << each.text;
      ASSERT_EQ(each.text, ended[0].text);
      continue;
    }
    ASSERT_TRUE(each.outcome.applied);
    for (size_t p = 0; p < parts.size(); ++p) {
      const auto& left_out = outcomes[r][p].rejected;
      ASSERT_EQ(left_out.size(), outcomes[0][p].rejected.size());
      ASSERT_EQ(results[r][p], vote_without(parts[p], left_out)) << "part " << p;
      rejected |= !left_out.empty();
      for (const RejectedBallot& ballot : left_out) named |= r == 0 && ballot.sender == d.sender;
    }
  }
  for (const int rank : ended[0].ranks) named |= rank == d.sender;
  // The last round may be damaged once without harm, and between nodes a rank passes on messages of other ranks.
  if (!of.nodes && d.call + 1 < calls && !stops_some) {
    ASSERT_TRUE(named) << ended[0].text;
  }
  ++(transport ? tally->timed_out : threw ? tally->refused : rejected ? tally->without : tally->right);
}

struct DamagedVotes {
  const char* name;
  int64_t parts;
  int ranks, nodes;
  SignAlgorithm algorithm;
  std::vector<int> senders;
  bool late;
};

std::ostream& operator<<(std::ostream& out, const DamagedVotes& of) { return out << of.name; }

class DamagedVote : public ::testing::TestWithParam<DamagedVotes> {};

TEST_P(DamagedVote, EndsAlikeOnAllRanks) {
  const auto& [name, parts, ranks, nodes, algorithm, senders, late] = GetParam();
  Rng rng = seeded(name, 5);
  VoteCase any = vote_of(ranks, nodes, algorithm, 1, rng);
  any.late = late;
  const std::vector<std::string> rounds =
      any.early() ? std::vector<std::string>{"announce and ballots", "results", "confirm", "commit"}
      : algorithm == SignAlgorithm::kOnePhase
          ? std::vector<std::string>{"announce", "ballots", "confirm", "commit"}
          : std::vector<std::string>{"announce", "ballots", "results", "confirm", "commit"};
  constexpr Damager::Receivers kReceivers[] = {Damager::kOne, Damager::kOthers, Damager::kAll};
  const auto columns = std::ssize(senders) * std::ssize(kReceivers);
  const int64_t of_part = part_calls(any, parts), calls = vote_calls(any, parts);
  std::map<std::string, Tally> tallies;
  int64_t row = 0, waits = 0;
  for (const bool between : {false, true})
    for (int64_t call = 0; call < (between && !nodes ? 0 : calls); ++call)
      for (const Damage damage : kDamages)
        for (const bool of_part_before : {false, true}) {
          if (of_part_before && (damage != Damage::kLate || call < of_part || call >= parts * of_part)) continue;
          const bool waits_here = damage == Damage::kLate && call % of_part == 0 && call + 2 < calls;
          const std::string& round =
              rounds[static_cast<size_t>(call < parts * of_part ? call % of_part : call - (parts - 1) * of_part)];
          int64_t column = 0;
          for (const int sender : senders)
            for (const auto receivers : kReceivers) {
              const bool taken = in_share(row, column++, columns);
              // These cases wait for a timeout, so one of each kind is enough.
              if (waits_here && (sender != 1 || receivers != Damager::kOne || !in_share(waits++))) continue;
              if (!taken && !waits_here) continue;
              SCOPED_TRACE(::testing::Message() << round << ", call " << call << ", between " << between << ", sender "
                                                << sender << ", damage " << static_cast<int>(damage) << ", receivers "
                                                << receivers << ", of the part before " << of_part_before);
              const int64_t count = damage == Damage::kLate ? 3072 * rng.between(1, 3) : 4096 + rng.below(6000);
              VoteCase of = vote_of(ranks, nodes, algorithm, count, rng);
              of.late = late;
              damaged_vote(of, parts, {between, call, damage, of_part_before, sender, receivers}, rng, &tallies[round]);
              if (HasFatalFailure()) return;
            }
          ++row;
        }
  Tally all;
  for (const auto& [round, tally] : tallies) {
    all.right += tally.right, all.refused += tally.refused;
    figure("{}, {}: {} damaged: {} right, {} right without the ballot, {} refused by all alike, {} by timeout", name,
           round, tally.cases, tally.right, tally.without, tally.refused, tally.timed_out);
  }
  EXPECT_TRUE(all.right > 0 && all.refused > 0);
  if (parts > 1) return;
  // A damaged ballot costs only itself, a damaged result costs the vote, and damage in the last round costs nothing.
  EXPECT_EQ(tallies.size(), rounds.size());
  if (algorithm == SignAlgorithm::kTwoPhase) {
    EXPECT_EQ(tallies["ballots"].without, tallies["ballots"].cases);
  }
  EXPECT_EQ(tallies["results"].refused, tallies["results"].cases);
  EXPECT_EQ(tallies["commit"].right, tallies["commit"].cases);
}

INSTANTIATE_TEST_SUITE_P(
    SignFaults, DamagedVote,
    ::testing::Values(DamagedVotes{"two phases", 1, 5, 0, SignAlgorithm::kTwoPhase, {0, 1, 2, 3, 4}, true},
                      DamagedVotes{"with ballots", 1, 5, 0, SignAlgorithm::kTwoPhase, {0, 1, 2, 3, 4}, false},
                      DamagedVotes{"one phase", 1, 5, 0, SignAlgorithm::kOnePhase, {0, 1, 2, 3, 4}, true},
                      DamagedVotes{"nodes", 1, 6, 2, SignAlgorithm::kTwoPhase, {0, 1, 4}, true},
                      DamagedVotes{"parts, two phases", 3, 4, 0, SignAlgorithm::kTwoPhase, {0, 1, 3}, true},
                      DamagedVotes{"parts, with ballots", 3, 4, 0, SignAlgorithm::kTwoPhase, {0, 1, 3}, false},
                      DamagedVotes{"parts, one phase", 3, 4, 0, SignAlgorithm::kOnePhase, {0, 1, 3}, true},
                      DamagedVotes{"parts, nodes", 3, 4, 2, SignAlgorithm::kTwoPhase, {0, 1, 3}, true}));

// Without the commit round --------------------------------------------------------------------------------------------

TEST(SignFaults, WithoutTheCommitRoundARankClaimsNoMoreThanItKnows) {
  Rng rng = seeded("no commit", 5);
  int64_t cases = 0, divided = 0, refused = 0;
  for (const SignAlgorithm algorithm : {SignAlgorithm::kOnePhase, SignAlgorithm::kTwoPhase})
    for (int64_t call = 0; call < 4; ++call)
      for (const auto receivers : {Damager::kOne, Damager::kOthers, Damager::kAll})
        for (const Damage damage : {Damage::kHeaderBit, Damage::kPayloadBit, Damage::kManyBits, Damage::kZeros}) {
          VoteCase of = vote_of(3, 0, algorithm, 5000, rng);
          of.options.commit = false;
          if (call >= of.calls(true) - 1) continue;
          SCOPED_TRACE(::testing::Message() << "call " << call << ", receivers " << receivers);
          Ranks ranks(of, std::chrono::milliseconds(30000));
          const auto sender = static_cast<int>(rng.below(3));
          Damager damager(*ranks.inside[0], damage, sender, (sender + 1) % 3, receivers, call, 0, rng);
          const std::vector<Ended> ended = run_ranks(of.ranks, [&](int r) {
            SignCollective collective = ranks.collective(r, of.options);
            VoteResult result(of.count);
            return collective.vote(of.ballot(r), result.memory());
          });
          ASSERT_GT(damager.changed(), 0);
          int64_t threw = 0;
          for (const Ended& each : ended) threw += each.threw;
          for (const Ended& each : ended) {
            if (!each.threw) continue;
            const bool claims = each.text.find("on any rank") != std::string::npos;
            ASSERT_NE(claims, each.text.find("other ranks may have applied") != std::string::npos) << each.text;
            ASSERT_TRUE(!claims || threw == of.ranks) << each.text;
            refused += claims;
          }
          ++cases;
          divided += threw > 0 && threw < of.ranks;
        }
  EXPECT_TRUE(divided > 0 && refused > 0);
  figure("{} damaged votes without the commit round: {} divided the ranks, and the error said so", cases, divided);
}

// A transport that fails ---------------------------------------------------------------------------------------------

SignBallot eight_signs() {
  static const std::byte bits{0x55};
  SignBallot ballot{.count = 8, .bits = &bits};
  return ballot;
}

TEST(SignFaults, AfterATransportFailedItIsNotUsedAgain) {
  ThreadGroup group(2, std::chrono::milliseconds(50));
  SignCollective collective(group.transport(0));
  std::byte out{};
  EXPECT_THROW((void)collective.vote(eight_signs(), {&out}), TransportError);
  try {
    (void)collective.vote(eight_signs(), {&out});
    ADD_FAILURE();
  } catch (const TransportError& e) {
    expect_in("rank 1 did not come", e.what());
  }
}

// An exception of another type from the transport reaches the caller unchanged.
TEST(SignFaults, ForeignExceptionsPass) {
  struct Foreign {};
  const auto fail = [](const std::byte*, std::byte*, int64_t) { throw Foreign(); };
  SignCollective collective(std::make_shared<CallbackTransport>(0, 2, fail, fail));
  std::byte out{};
  EXPECT_THROW((void)collective.vote(eight_signs(), {&out}), Foreign);
  EXPECT_THROW((void)collective.vote(eight_signs(), {&out}), TransportError);
}

}  // namespace
}  // namespace lowtide::testing
