// Claims: whatever call a rank dies at, and whatever message is damaged, cut off, late, or another's, no two ranks end
// with different results.
#include <gtest/gtest.h>

#include <mutex>

#include "support/share.h"
#include "support/sign_faults.h"

namespace lowtide {
namespace {

using testing::Damage;
using testing::Damager;
using testing::Ended;
using testing::kDamages;
using testing::Ranks;
using testing::Rng;
using testing::vote_of;
using testing::vote_without;
using testing::VoteCase;
using testing::VoteResult;
using testing::Where;

struct Tally {
  int64_t cases = 0, right = 0, without = 0, refused = 0, timed_out = 0;
};

// Deaths -------------------------------------------------------------------------------------------------------------

// One rank dies at one call of one of its transports, in the first vote or in the one after it.
void expect_survived(const VoteCase& of, int dead, bool between, int64_t call, bool after_sending, bool first,
                     Tally* tally) {
  Ranks ranks(of, std::chrono::milliseconds(900));
  const int inside = of.nodes ? of.ranks / of.nodes : of.ranks;
  ThreadGroup& group =
      between ? *ranks.between[static_cast<size_t>(dead % inside)] : *ranks.inside[static_cast<size_t>(dead / inside)];
  group.kill(between ? dead / inside : dead % inside, call + (first ? 0 : of.calls(true)), after_sending);
  std::vector<VoteResult> results(static_cast<size_t>(of.ranks), VoteResult(of.count));
  const std::vector<Ended> ended = testing::run_ranks(of.ranks, [&](int r) {
    SignCollective collective = ranks.collective(r, of.options);
    if (!first) {
      VoteResult earlier(of.count);
      EXPECT_TRUE(collective.vote(of.ballot(r), earlier.memory()).applied);
    }
    return collective.vote(of.ballot(r), results[static_cast<size_t>(r)].memory());
  });
  const VoteResult wanted = reference_vote(of);
  int64_t succeeded = 0, named = 0;
  for (int r = 0; r < of.ranks; ++r) {
    const Ended& each = ended[static_cast<size_t>(r)];
    if (r == dead) {
      ASSERT_TRUE(each.threw && each.transport) << each.text;
      ASSERT_EQ(results[static_cast<size_t>(r)], VoteResult(of.count));
      continue;
    }
    if (each.threw) {
      ASSERT_TRUE(each.transport) << each.text;
      ASSERT_FALSE(each.ranks.empty()) << each.text;
      ASSERT_EQ(results[static_cast<size_t>(r)], VoteResult(of.count)) << "written, though it threw";
      named += each.ranks == std::vector<int>{dead};
    } else {
      ASSERT_EQ(results[static_cast<size_t>(r)], wanted);
      ++succeeded;
    }
  }
  const int64_t last = of.calls(first) - 1;
  if (!of.nodes) {
    // Over one transport all others see the same; they succeed where the dead had said all it had to say.
    ASSERT_EQ(succeeded, call == last && after_sending ? of.ranks - 1 : 0) << "call " << call;
    ASSERT_EQ(named + succeeded, of.ranks - 1);
  } else {
    ASSERT_TRUE(succeeded > 0 || named > 0);
  }
  ++tally->cases;
  if (succeeded)
    ++tally->right;
  else
    ++tally->timed_out;
}

TEST(SignFaults, ARankThatDiesAtAnyCallHangsNobody) {
  struct Death {
    SignAlgorithm algorithm;
    int ranks, nodes, dead;
    bool between;
    int64_t call;
    bool after_sending;
    bool first = true;
  };
  std::vector<Death> deaths;
  for (const bool after : {false, true}) {
    for (int dead = 0; dead < 5; ++dead) {
      for (int64_t call = 0; call < 4; ++call) {
        deaths.push_back({SignAlgorithm::kOnePhase, 5, 0, dead, false, call, after});
        deaths.push_back({SignAlgorithm::kTwoPhase, 5, 0, dead, false, call, after, false});
      }
      for (int64_t call = 0; call < 5; ++call)
        deaths.push_back({SignAlgorithm::kTwoPhase, 5, 0, dead, false, call, after});
    }
    for (const int dead : {0, 4})
      for (int64_t call = 0; call < 5; ++call)
        for (const bool between : {false, true})
          deaths.push_back({SignAlgorithm::kTwoPhase, 6, 2, dead, between, call, after});
  }
  // Every share keeps those of the first rank at the last call, of which two leave the others the right result.
  int64_t grid = 0;
  std::erase_if(deaths, [&](const Death& d) {
    const int64_t last = d.algorithm == SignAlgorithm::kOnePhase || !d.first ? 3 : 4;
    return !(d.nodes == 0 && d.dead == 0 && d.call == last) && !testing::in_share(grid++);
  });
  // They mostly wait: many at a time.
  constexpr int kAtOnce = 20;
  std::atomic<size_t> next{0};
  std::mutex mutex;
  Tally tally;
  std::vector<std::thread> threads;
  for (int t = 0; t < kAtOnce; ++t)
    threads.emplace_back([&] {
      for (size_t i; (i = next.fetch_add(1)) < deaths.size();) {
        const Death& d = deaths[i];
        Rng rng(i);
        const VoteCase of = vote_of(d.ranks, d.nodes, d.algorithm, 5000, rng);
        Tally mine;
        expect_survived(of, d.dead, d.between, d.call, d.after_sending, d.first, &mine);
        const std::lock_guard lock(mutex);
        tally.cases += mine.cases, tally.right += mine.right, tally.timed_out += mine.timed_out;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(tally.cases, static_cast<int64_t>(deaths.size()));
  EXPECT_GT(tally.right, 0);
  std::printf(
      "[ checks ] %lld deaths at every call, before and after sending: %lld times the others had all it said and "
      "the right result, %lld times they threw within the timeout and wrote nothing; none hung, no result "
      "differed\n",
      static_cast<long long>(tally.cases), static_cast<long long>(tally.right),
      static_cast<long long>(tally.timed_out));
}

// Damage -------------------------------------------------------------------------------------------------------------

// Votes over the same transports, the last of which is damaged. Before it are one that announces by itself and, where
// announcements come with ballots, one whose messages are as large.
void damaged_vote(const VoteCase& of, const Where& where, Damage damage, int sender, Damager::Receivers receivers,
                  Rng& rng, Tally* tally) {
  const bool late_announcement = damage == Damage::kLate && where.call == 0;
  // A sound announcement of an earlier step stops those who get it at once; the others find out by waiting for them.
  Ranks ranks(of, std::chrono::milliseconds(late_announcement ? 900 : 30000));
  const int inside = of.nodes ? of.ranks / of.nodes : of.ranks;
  ThreadGroup& group = where.between ? *ranks.between[static_cast<size_t>(sender % inside)]
                                     : *ranks.inside[static_cast<size_t>(sender / inside)];
  const int group_size = where.between ? of.nodes : inside;
  const int group_sender = where.between ? sender / inside : sender % inside;
  const int64_t calls = of.calls(false), calls_before = of.calls(true) + (of.early() ? calls : 0);
  const int group_receiver = static_cast<int>((group_sender + 1 + rng.below(group_size - 1)) % group_size);
  Damager damager(group, damage, group_sender, group_receiver, receivers, calls_before + where.call, calls, rng);

  VoteCase before = of;
  before.step = of.step - 1;
  std::vector<VoteResult> results(static_cast<size_t>(of.ranks), VoteResult(of.count));
  const std::vector<Ended> ended = testing::run_ranks(of.ranks, [&](int r) {
    SignCollective collective = ranks.collective(r, of.options);
    for (int votes = of.early() ? 2 : 1; votes > 0; --votes) {
      VoteResult earlier(of.count);
      EXPECT_TRUE(collective.vote(before.ballot(r), earlier.memory()).applied);
    }
    return collective.vote(of.ballot(r), results[static_cast<size_t>(r)].memory());
  });
  ASSERT_GT(damager.changed(), 0) << "nothing was damaged at " << where.name;
  ++tally->cases;
  int threw = 0;
  bool transport = false;
  for (const Ended& each : ended) threw += each.threw, transport |= each.transport;
  ASSERT_TRUE(threw == 0 || threw == of.ranks) << where.name << ": some applied what others did not: " << threw;
  for (int r = 0; r < of.ranks; ++r) {
    const Ended& each = ended[static_cast<size_t>(r)];
    if (each.threw) {
      ASSERT_EQ(results[static_cast<size_t>(r)], VoteResult(of.count)) << "written, though it threw";
      if (late_announcement) continue;
      ASSERT_FALSE(each.transport) << each.text;
      ASSERT_EQ(each.text, ended[0].text) << where.name;
      ASSERT_FALSE(each.ranks.empty());
      continue;
    }
    ASSERT_TRUE(each.outcome.applied);
    ASSERT_EQ(each.outcome.rejected.size(), ended[0].outcome.rejected.size());
    ASSERT_EQ(results[static_cast<size_t>(r)], vote_without(of, ended[0].outcome.rejected)) << where.name;
  }
  if (transport)
    ++tally->timed_out;
  else if (threw)
    ++tally->refused;
  else if (ended[0].outcome.rejected.empty())
    ++tally->right;
  else
    ++tally->without;
  bool named = false;
  for (const RejectedBallot& each : ended[0].outcome.rejected) named |= each.sender == sender;
  for (const int rank : ended[0].ranks) named |= rank == sender;
  // The last round may be damaged once without harm, and what a rank passes on between nodes is not its own.
  if (!of.nodes && where.call + 1 < calls && !late_announcement) {
    ASSERT_TRUE(named) << where.name << ": " << ended[0].text;
  }
}

void damage_everything(const char* name, int ranks, int nodes, SignAlgorithm algorithm,
                       const std::vector<Where>& places, const std::vector<int>& senders, bool late = true) {
  Rng rng = testing::seeded(name, 5);
  Tally all;
  constexpr Damager::Receivers kReceivers[] = {Damager::kOne, Damager::kOthers, Damager::kAll};
  const auto columns = std::ssize(senders) * std::ssize(kReceivers);
  int64_t row = 0;  // a damage at a place
  for (const Where& where : places) {
    Tally tally;
    for (const Damage damage : kDamages) {
      int64_t column = 0;
      for (const int sender : senders)
        for (const auto receivers : kReceivers) {
          const bool taken = testing::in_share(row, column++, columns);
          // Waits for a timeout: once for each place is enough.
          if (damage == Damage::kLate && where.call == 0 && (sender != 1 || receivers != Damager::kOne)) continue;
          if (!taken) continue;
          VoteCase of = vote_of(ranks, nodes, algorithm, 3000 + rng.below(6000), rng);
          of.late = late;
          damaged_vote(of, where, damage, sender, receivers, rng, &tally);
          if (::testing::Test::HasFatalFailure()) {
            std::printf("at %s, sender %d, damage %d, receivers %d\n", where.name, sender, static_cast<int>(damage),
                        static_cast<int>(receivers));
            return;
          }
        }
      ++row;
    }
    EXPECT_GT(tally.cases, 0) << where.name;
    std::printf(
        "[ checks ] %s, %s: %lld damaged: %lld right, %lld right without the ballot and its sender named, %lld "
        "refused by all alike, %lld by timeout\n",
        name, where.name, static_cast<long long>(tally.cases), static_cast<long long>(tally.right),
        static_cast<long long>(tally.without), static_cast<long long>(tally.refused),
        static_cast<long long>(tally.timed_out));
    all.cases += tally.cases, all.right += tally.right, all.without += tally.without, all.refused += tally.refused;
    const std::string place = where.name;
    // A damaged ballot costs that ballot only, and damage in the last round costs nothing.
    if (place.starts_with("ballots") && algorithm == SignAlgorithm::kTwoPhase) {
      EXPECT_EQ(tally.without, tally.cases);
    }
    if (place.starts_with("commit")) {
      EXPECT_EQ(tally.right, tally.cases);
    }
    if (place.starts_with("results")) {
      EXPECT_EQ(tally.refused, tally.cases);
    }
  }
}

TEST(SignFaults, DamageInTwoPhases) {
  damage_everything("two phases", 5, 0, SignAlgorithm::kTwoPhase,
                    {{false, 0, "announce"},
                     {false, 1, "ballots"},
                     {false, 2, "results"},
                     {false, 3, "confirm"},
                     {false, 4, "commit"}},
                    {0, 1, 2, 3, 4});
}

TEST(SignFaults, DamageWhereAnnouncementsComeWithBallots) {
  damage_everything(
      "with ballots", 5, 0, SignAlgorithm::kTwoPhase,
      {{false, 0, "announce and ballots"}, {false, 1, "results"}, {false, 2, "confirm"}, {false, 3, "commit"}},
      {0, 1, 2, 3, 4}, false);
}

TEST(SignFaults, DamageInOnePhase) {
  damage_everything("one phase", 5, 0, SignAlgorithm::kOnePhase,
                    {{false, 0, "announce"}, {false, 1, "ballots"}, {false, 2, "confirm"}, {false, 3, "commit"}},
                    {0, 1, 2, 3, 4});
}

TEST(SignFaults, DamageOnNodes) {
  damage_everything("nodes", 6, 2, SignAlgorithm::kTwoPhase,
                    {{false, 0, "announce inside"},
                     {true, 0, "announce between"},
                     {false, 1, "ballots inside"},
                     {true, 1, "ballots' counts between"},
                     {true, 2, "results between"},
                     {false, 2, "results inside"},
                     {false, 3, "confirm inside"},
                     {true, 3, "confirm between"},
                     {false, 4, "commit inside"},
                     {true, 4, "commit between"}},
                    {0, 1, 4});
}

TEST(SignFaults, AfterATransportFailedItIsNotUsedAgain) {
  ThreadGroup group(2, std::chrono::milliseconds(50));
  SignCollective collective(group.transport(0));
  const std::byte bits{0x55};
  std::byte out{};
  SignBallot ballot;
  ballot.count = 8, ballot.bits = &bits;
  EXPECT_THROW((void)collective.vote(ballot, {&out}), TransportError);
  try {
    (void)collective.vote(ballot, {&out});
    ADD_FAILURE();
  } catch (const TransportError& e) {
    EXPECT_NE(std::string(e.what()).find("rank 1 did not come"), std::string::npos) << e.what();
  }
}

// An exception of the transport reaches the caller as it is.
TEST(SignFaults, ForeignExceptionsPass) {
  struct Foreign {};
  const auto fail = [](const std::byte*, std::byte*, int64_t) { throw Foreign(); };
  SignCollective collective(std::make_shared<CallbackTransport>(0, 2, fail, fail));
  const std::byte bits{0x55};
  std::byte out{};
  SignBallot ballot;
  ballot.count = 8, ballot.bits = &bits;
  EXPECT_THROW((void)collective.vote(ballot, {&out}), Foreign);
  EXPECT_THROW((void)collective.vote(ballot, {&out}), TransportError);
}

}  // namespace
}  // namespace lowtide
