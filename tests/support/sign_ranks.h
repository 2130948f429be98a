// Ranks of a sign collective as threads, with their votes: random ballots, and outcomes computed sign by sign.
#pragma once

#include <future>

#include "backend/signs.h"
#include "lowtide/sign_collective.h"
#include "support/sign_reference.h"
#include "support/test.h"

// Only the portable kernels define the bit that breaks a tie by hash.
namespace lowtide::testing::portable {
#ifndef LT_FN
#define LT_FN inline
#endif
#include "portable/types.h"
#include "portable/math.h"
#include "portable/half.h"
#include "portable/random.h"
#include "portable/sign.h"
}  // namespace lowtide::testing::portable

namespace lowtide::testing {

inline bool hashed_tie(uint64_t seed, uint64_t step, uint64_t index) {
  return portable::tie_group(seed, step, index / 32) >> (index % 32) & 1;
}

// How a rank's call ended.
struct Ended {
  bool threw = false;
  std::string text;
  int kind = 0;  // an ErrorKind; 0: another exception
  bool transport = false;
  std::vector<int> ranks;
  SignOutcome outcome;
};

// Runs fn(rank) on a thread for each rank. A rank that hangs ends the program, because nothing else would report it.
inline std::vector<Ended> run_ranks(int ranks, const std::function<SignOutcome(int)>& fn) {
  std::vector<Ended> ended(static_cast<size_t>(ranks));
  std::vector<std::future<void>> done;
  for (int r = 0; r < ranks; ++r)
    done.push_back(std::async(std::launch::async, [&, r] {
      Ended& mine = ended[static_cast<size_t>(r)];
      try {
        mine.outcome = fn(r);
      } catch (const TransportError& e) {
        mine = {true, e.what(), static_cast<int>(e.kind()), true, e.ranks(), {}};
      } catch (const CollectiveError& e) {
        mine = {true, e.what(), static_cast<int>(e.kind()), false, e.ranks(), {}};
      } catch (const Error& e) {
        mine = {true, e.what(), static_cast<int>(e.kind()), false, {}, {}};
      } catch (const std::exception& e) {
        mine = {true, e.what(), 0, false, {}, {}};
      }
    }));
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  for (int r = 0; r < ranks; ++r)
    if (done[static_cast<size_t>(r)].wait_until(limit) != std::future_status::ready) {
      figure("rank {} of {} hangs", r, ranks);
      std::fflush(stdout);
      std::abort();
    }
  return ended;
}

// One vote: the rows of all ranks.
struct VoteCase {
  int ranks = 1, nodes = 0;  // nodes 0: one transport
  int64_t count = 0;
  bool with_presence = false;
  SignCollectiveOptions options;
  uint64_t step = 0, first_index = 0;
  bool late = false;  // ballots appear only after all ranks have announced
  std::vector<uint32_t> weights;
  std::vector<Bits> ballots, presence;
  Bits previous;

  // Returns true if announcements travel with ballots after a vote like this one.
  bool early() const { return !nodes && !late && options.algorithm == SignAlgorithm::kTwoPhase; }
  // The number of calls of each transport for a vote of so many parts, the first vote or a later one.
  int64_t calls(bool first, int64_t parts = 1) const {
    const int64_t of_part = options.algorithm == SignAlgorithm::kOnePhase || (early() && !first) ? 2 : 3;
    return parts * of_part + 2;
  }

  SignBallot ballot(int rank) const {
    const auto r = static_cast<size_t>(rank);
    SignBallot out;
    out.count = count;
    out.bits = bytes(ballots[r]);
    out.presence = with_presence ? bytes(presence[r]) : nullptr;
    out.previous = bytes(previous);
    out.step = step, out.first_index = first_index, out.digest = 77;
    out.weight = weights[r];
    if (late) out.prepare = [] { return true; };
    return out;
  }
};

struct VoteResult {
  Bits bits, presence, zeros;
  explicit VoteResult(int64_t count, unsigned char fill = 0xa5)
      : bits(sign_bytes(count), fill),
        presence(static_cast<size_t>(presence_bytes(count)), fill),
        zeros(sign_bytes(count), fill) {}
  SignResult memory() { return {bytes(bits), bytes(presence), bytes(zeros), nullptr}; }
  bool operator==(const VoteResult&) const = default;
};

// Decides whether a rank's ballot counts for a sign. By default, every rank with weight counts.
using Counts = std::function<bool(int rank, int64_t sign)>;

// Computes a vote sign by sign. Memory that a vote does not write keeps `fill`.
inline VoteResult reference_vote(const VoteCase& of, const Counts& counts = {}, int64_t* ties = nullptr) {
  VoteResult out(of.count);
  const bool zero_rule = of.options.ties == "zero";
  std::fill(out.bits.begin(), out.bits.end(), 0);
  if (of.with_presence) std::fill(out.presence.begin(), out.presence.end(), 0);
  if (zero_rule) std::fill(out.zeros.begin(), out.zeros.end(), 0);
  const auto set = [](Bits& bits, int64_t i) {
    bits[static_cast<size_t>(i / 8)] |= static_cast<unsigned char>(1 << (i % 8));
  };
  for (int64_t i = 0; i < of.count; ++i) {
    int64_t sum = 0;
    bool any = !of.with_presence;
    for (int r = 0; r < of.ranks; ++r) {
      const auto at = static_cast<size_t>(r);
      if (of.weights[at] == 0 || (counts && !counts(r, i))) continue;
      if (of.with_presence && !sign_of(of.presence[at], i / kSignBlock)) continue;
      any = true;
      sum += sign_of(of.ballots[at], i) ? int64_t{of.weights[at]} : -int64_t{of.weights[at]};
    }
    if (!any) continue;
    if (of.with_presence) set(out.presence, i / kSignBlock);
    const std::string& rule = of.options.ties;
    if (sum == 0 && zero_rule) set(out.zeros, i);
    if (sum == 0 && ties) ++*ties;
    const bool plus =
        sum > 0 ||
        (sum == 0 &&
         (rule == "plus" || (rule == "previous" && sign_of(of.previous, i)) ||
          (rule == "hash" && hashed_tie(of.options.seed, of.step, of.first_index + static_cast<uint64_t>(i)))));
    if (plus) set(out.bits, i);
  }
  return out;
}

inline VoteCase random_vote(int ranks, int64_t count, Rng& rng) {
  static const char* const rules[] = {"hash", "plus", "minus", "zero", "previous"};
  VoteCase out;
  out.ranks = ranks, out.count = count;
  out.with_presence = rng.chance(0.5);
  out.options.ties = rules[rng.below(5)];
  out.options.seed = rng.next();
  out.options.threads = static_cast<int>(rng.between(1, 3));
  out.options.latency_s = 1e-4, out.options.bytes_per_s = 1e8;
  out.step = rng.next(), out.first_index = static_cast<uint64_t>(rng.below(1 << 30)) * 1024;
  const bool weighted = rng.chance(0.5);
  for (int r = 0; r < ranks; ++r) {
    out.weights.push_back(weighted ? static_cast<uint32_t>(rng.chance(0.1) ? 1000 : rng.below(4)) : 1);
    out.ballots.push_back(random_bits(count, rng));
    out.presence.push_back(random_bits((count + kSignBlock - 1) / kSignBlock, rng));
  }
  if (weighted && rng.chance(0.9)) out.weights[static_cast<size_t>(rng.below(ranks))] = 2;
  out.previous = random_bits(count, rng);
  return out;
}

// The transports of each rank, on one level or two.
struct Ranks {
  explicit Ranks(const VoteCase& of, std::chrono::milliseconds timeout = std::chrono::seconds(60)) : nodes(of.nodes) {
    const int inside_size = nodes ? of.ranks / nodes : of.ranks;
    for (int m = 0; m < std::max(nodes, 1); ++m) inside.push_back(std::make_unique<ThreadGroup>(inside_size, timeout));
    for (int l = 0; nodes && l < inside_size; ++l) between.push_back(std::make_unique<ThreadGroup>(nodes, timeout));
  }
  SignCollective collective(int rank, const SignCollectiveOptions& options) {
    if (!nodes) return SignCollective(inside[0]->transport(rank), options);
    const auto size = static_cast<int>(between.size());
    return SignCollective(inside[static_cast<size_t>(rank / size)]->transport(rank % size),
                          between[static_cast<size_t>(rank % size)]->transport(rank / size), options);
  }
  int nodes;
  std::vector<std::unique_ptr<ThreadGroup>> inside, between;
};

// Takes the vote on all ranks over new transports; results[r] gets the result of rank r.
inline std::vector<Ended> take_vote(const VoteCase& of, Ranks& ranks, std::vector<VoteResult>* results) {
  results->assign(static_cast<size_t>(of.ranks), VoteResult(of.count));
  return run_ranks(of.ranks, [&](int r) {
    SignCollective collective = ranks.collective(r, of.options);
    return collective.vote(of.ballot(r), (*results)[static_cast<size_t>(r)].memory());
  });
}

}  // namespace lowtide::testing
