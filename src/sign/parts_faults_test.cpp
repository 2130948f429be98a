// Claims: whatever message of whatever part of a vote in parts is damaged, cut off, late or another's, and whatever
// call a rank dies at, all ranks apply all parts or none does.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>

#include "support/share.h"
#include "support/sign_faults.h"
#include "support/sign_parts.h"

namespace lowtide {
namespace {

using testing::Damage;
using testing::Damager;
using testing::Ended;
using testing::kDamages;
using testing::PartResults;
using testing::Ranks;
using testing::Rng;
using testing::room_for;
using testing::vote_in_parts;
using testing::VoteCase;
using testing::VoteResult;

constexpr int kParts = 3;

// Calls of each transport: rounds of a part, and of a vote; of those that are damaged, which come after others.
int64_t vote_calls(const VoteCase& of) { return of.calls(false, kParts); }
int64_t part_calls(const VoteCase& of) { return (vote_calls(of) - 2) / kParts; }

// Equal parts have messages of equal sizes: those of one can come in place of another's.
std::vector<VoteCase> three_parts(const VoteCase& of, bool equal, Rng& rng) {
  const int64_t third = of.count / 3 / 1024 * 1024;
  return testing::parts_of(
      of, equal ? std::vector<int64_t>{third, 2 * third} : std::vector<int64_t>{1024 * rng.below(2), third + 1024});
}

struct PartsTally {
  int64_t cases = 0, right = 0, without = 0, refused = 0, timed_out = 0;
};

struct PartsDamage {
  bool between;
  int64_t call;  // of the vote
  Damage damage;
  bool of_part_before;  // kLate: the same round of the part before, or of the vote before
  int sender;
  Damager::Receivers receivers;
};

// A vote in parts, another where its announcements come with ballots, the same again with damage, and one in one call,
// over the same transports.
void expect_all_or_none(const VoteCase& of, const PartsDamage& d, Rng& rng, PartsTally* tally) {
  const bool announces = d.call % part_calls(of) == 0 && d.call < kParts * part_calls(of);
  const bool stops_some = announces && d.damage == Damage::kLate;  // the others find out by waiting for them
  Ranks ranks(of, std::chrono::milliseconds(stops_some ? 900 : 30000));
  const int inside = of.nodes ? of.ranks / of.nodes : of.ranks;
  ThreadGroup& group = d.between ? *ranks.between[static_cast<size_t>(d.sender % inside)]
                                 : *ranks.inside[static_cast<size_t>(d.sender / inside)];
  const int size = d.between ? of.nodes : inside, sender = d.between ? d.sender / inside : d.sender % inside;
  const int receiver = static_cast<int>((sender + 1 + rng.below(size - 1)) % size);
  const int64_t calls_before = of.calls(true, kParts) + (of.early() ? vote_calls(of) : 0);
  Damager damager(group, d.damage, sender, receiver, d.receivers, calls_before + d.call,
                  d.of_part_before ? part_calls(of) : vote_calls(of), rng);
  const std::vector<VoteCase> parts = three_parts(of, d.damage == Damage::kLate || rng.chance(0.5), rng);
  std::vector<VoteCase> before = parts;
  for (VoteCase& part : before) part.step -= 1;
  const auto count = static_cast<size_t>(of.ranks);
  std::vector<PartResults> results(count, room_for(parts));
  std::vector<VoteResult> after(count, VoteResult(of.count));
  std::vector<std::vector<SignOutcome>> outcomes(count);
  const std::vector<Ended> ended = testing::run_ranks(of.ranks, [&](int r) {
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
      if (stops_some) continue;
      ASSERT_FALSE(each.transport) << each.text;
      ASSERT_EQ(each.text, ended[0].text);
      continue;
    }
    ASSERT_TRUE(each.outcome.applied);
    for (size_t p = 0; p < parts.size(); ++p) {
      const auto& left_out = outcomes[r][p].rejected;
      ASSERT_EQ(left_out.size(), outcomes[0][p].rejected.size());
      ASSERT_EQ(results[r][p], vote_without(parts[p], left_out)) << "part " << p;
      rejected |= !left_out.empty();
      for (const RejectedBallot& ballot : left_out) named |= ballot.sender == d.sender;
    }
  }
  for (const int rank : ended[0].ranks) named |= rank == d.sender;
  if (!of.nodes && d.call + 1 < vote_calls(of) && !stops_some) {
    ASSERT_TRUE(named) << ended[0].text;
  }
  ++(transport ? tally->timed_out : threw ? tally->refused : rejected ? tally->without : tally->right);
}

void damage_parts(const char* name, int ranks, int nodes, SignAlgorithm algorithm, const std::vector<int>& senders,
                  bool late = true) {
  Rng rng = testing::seeded(name, 6);
  PartsTally tally;
  constexpr Damager::Receivers kReceivers[] = {Damager::kOne, Damager::kOthers, Damager::kAll};
  const auto columns = std::ssize(senders) * std::ssize(kReceivers);
  int64_t row = 0, waits = 0;
  VoteCase any = testing::vote_of(ranks, nodes, algorithm, 1, rng);
  any.late = late;
  for (const bool between : {false, true}) {
    if (between && !nodes) continue;
    for (int64_t call = 0; call < vote_calls(any); ++call)
      for (const Damage damage : kDamages)
        for (const bool of_part_before : {false, true}) {
          const bool has_one = damage == Damage::kLate && call >= part_calls(any) && call < kParts * part_calls(any);
          if (of_part_before && !has_one) continue;
          const bool waits_here = damage == Damage::kLate && call % part_calls(any) == 0 && call + 2 < vote_calls(any);
          int64_t column = 0;
          for (const int sender : senders)
            for (const auto receivers : kReceivers) {
              const bool taken = testing::in_share(row, column++, columns);
              // Waits for a timeout: one for each is enough.
              if (waits_here && (sender != 1 || receivers != Damager::kOne || !testing::in_share(waits++))) continue;
              if (!taken && !waits_here) continue;
              const int64_t count = damage == Damage::kLate ? 3072 * rng.between(1, 3) : 4096 + rng.below(6000);
              VoteCase of = testing::vote_of(ranks, nodes, algorithm, count, rng);
              of.late = late;
              expect_all_or_none(of, {between, call, damage, of_part_before, sender, receivers}, rng, &tally);
              if (::testing::Test::HasFatalFailure()) {
                std::printf("%s: between %d, call %lld, sender %d, damage %d, receivers %d, of the part before %d\n",
                            name, between, static_cast<long long>(call), sender, static_cast<int>(damage),
                            static_cast<int>(receivers), of_part_before);
                return;
              }
            }
          ++row;
        }
  }
  EXPECT_TRUE(tally.right > 0 && tally.refused > 0);
  std::printf(
      "[ checks ] %s: %lld damaged in votes of %d parts: %lld right, %lld right without the ballot, %lld refused by "
      "all "
      "alike, %lld by timeout; the vote after each is right\n",
      name, static_cast<long long>(tally.cases), kParts, static_cast<long long>(tally.right),
      static_cast<long long>(tally.without), static_cast<long long>(tally.refused),
      static_cast<long long>(tally.timed_out));
}

TEST(SignPartsFaults, DamageInTwoPhases) {
  damage_parts("parts, two phases", 4, 0, SignAlgorithm::kTwoPhase, {0, 1, 3});
}
TEST(SignPartsFaults, DamageWhereAnnouncementsComeWithBallots) {
  damage_parts("parts, with ballots", 4, 0, SignAlgorithm::kTwoPhase, {0, 1, 3}, false);
}
TEST(SignPartsFaults, DamageInOnePhase) { damage_parts("parts, one phase", 4, 0, SignAlgorithm::kOnePhase, {0, 1, 3}); }
TEST(SignPartsFaults, DamageOnNodes) { damage_parts("parts, nodes", 4, 2, SignAlgorithm::kTwoPhase, {0, 1, 3}); }

TEST(SignPartsFaults, ARankThatDiesAtAnyCallHangsNobody) {
  struct Death {
    SignAlgorithm algorithm;
    int dead;
    int64_t call;
    bool after_sending;
  };
  std::vector<Death> deaths;
  int64_t row = 0;
  for (const SignAlgorithm algorithm : {SignAlgorithm::kOnePhase, SignAlgorithm::kTwoPhase})
    for (const bool after : {false, true})
      for (int dead = 0; dead < 4; ++dead) {
        Rng rng(0);
        const int64_t last = testing::vote_of(4, 0, algorithm, 1, rng).calls(true, kParts) - 1;
        for (int64_t call = 0; call <= last; ++call)
          if ((dead == 0 && call == last) || testing::in_share(row++)) deaths.push_back({algorithm, dead, call, after});
      }
  // They mostly wait: many at a time.
  std::atomic<size_t> next{0};
  std::mutex mutex;
  int64_t right = 0, nothing = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 20; ++t)
    threads.emplace_back([&] {
      for (size_t i; (i = next.fetch_add(1)) < deaths.size();) {
        const Death& d = deaths[i];
        Rng rng(i);
        const VoteCase of = testing::vote_of(4, 0, d.algorithm, 5000, rng);
        const std::vector<VoteCase> parts = three_parts(of, false, rng);
        Ranks ranks(of, std::chrono::milliseconds(900));
        ranks.inside[0]->kill(d.dead, d.call, d.after_sending);
        std::vector<PartResults> results(4, room_for(parts));
        const std::vector<Ended> ended = testing::run_ranks(4, [&](int r) {
          SignCollective collective = ranks.collective(r, of.options);
          return vote_in_parts(collective, parts, r, results[static_cast<size_t>(r)]);
        });
        int64_t succeeded = 0, named = 0;
        for (int r = 0; r < 4; ++r) {
          const auto at = static_cast<size_t>(r);
          if (r == d.dead || ended[at].threw) {
            EXPECT_TRUE(ended[at].threw && ended[at].transport) << ended[at].text;
            named += ended[at].ranks == std::vector<int>{d.dead};
            continue;
          }
          EXPECT_EQ(testing::joined(results[at]), reference_vote(of));
          ++succeeded;
        }
        const bool said_all = d.call == of.calls(true, kParts) - 1 && d.after_sending;
        EXPECT_EQ(succeeded, said_all ? 3 : 0) << "call " << d.call;
        EXPECT_EQ(named, said_all ? 1 : 4);
        const std::lock_guard lock(mutex);
        ++(succeeded ? right : nothing);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(right, 0);
  std::printf(
      "[ checks ] %zu deaths at every call of a vote in %d parts: %lld times the others had all it said and the right "
      "result, %lld times all threw within the timeout\n",
      deaths.size(), kParts, static_cast<long long>(right), static_cast<long long>(nothing));
}

}  // namespace
}  // namespace lowtide
