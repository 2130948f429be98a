// For tests of faulty votes: the outcome of a vote without some ballots, and messages damaged in transit.
#pragma once

#include <tuple>

#include "sign/shard_messages.h"
#include "support/sign_ranks.h"
#include "support/test.h"

namespace lowtide::testing {

inline VoteCase vote_of(int ranks, int nodes, SignAlgorithm algorithm, int64_t count, Rng& rng) {
  VoteCase of = random_vote(ranks, count, rng);
  of.nodes = nodes;
  of.weights.assign(static_cast<size_t>(ranks), 1);
  of.options.algorithm = algorithm;
  of.options.threads = 1;
  return of;
}

// Returns the vote without the rejected ballots, which all ranks report alike.
inline VoteResult vote_without(const VoteCase& of, const std::vector<RejectedBallot>& rejected) {
  const int nodes = std::max(of.nodes, 1), inside = of.ranks / nodes;
  const int64_t part = shard_signs(of.count, of.ranks);
  return reference_vote(of, [&](int rank, int64_t sign) {
    const auto index = static_cast<int>(sign / part);
    const int owner = of.nodes ? index % nodes * inside + index / nodes : index;
    for (const RejectedBallot& each : rejected)
      if (each.sender == rank && (each.owner < 0 || each.owner == owner)) return false;
    return true;
  });
}

enum class Damage { kHeaderBit, kPayloadBit, kManyBits, kCutOff, kZeros, kLate, kOthers };
inline constexpr Damage kDamages[] = {Damage::kHeaderBit, Damage::kPayloadBit, Damage::kManyBits, Damage::kCutOff,
                                      Damage::kZeros,     Damage::kLate,       Damage::kOthers};

// Damages the messages of call number `call` of `sender` in a group: to one rank, to all others, or to itself, too.
class Damager {
 public:
  enum Receivers { kOne, kOthers, kAll };
  Damager(ThreadGroup& group, Damage damage, int sender, int receiver, Receivers receivers, int64_t call,
          int64_t calls_before, Rng& rng)
      : damage_(damage),
        sender_(sender),
        receiver_(receiver),
        receivers_(receivers),
        call_(call),
        calls_before_(calls_before),
        random_(rng.next()) {
    group.on_message([this](ThreadGroup::Message& message) { see(message); });
  }
  int64_t changed() const { return changed_; }

 private:
  void see(ThreadGroup::Message& m) {
    const std::vector<std::byte> as_sent(m.data, m.data + m.bytes);
    const bool hit = m.call == call_ && m.sender == sender_ &&
                     (receivers_ == kAll || (receivers_ == kOthers ? m.receiver != sender_ : m.receiver == receiver_));
    if (hit) {
      change(m);
      changed_ += m.bytes < static_cast<int64_t>(as_sent.size()) || !std::equal(as_sent.begin(), as_sent.end(), m.data);
    }
    sent_[{m.call, m.sender, m.receiver}] = as_sent;
  }

  void flip(std::byte* data, int64_t from, int64_t to) {
    const int64_t bit = random_.between(8 * from, 8 * to - 1);
    data[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
  }

  void change(ThreadGroup::Message& m) {
    const int64_t header = std::min<int64_t>(m.bytes, 64);
    switch (damage_) {
      case Damage::kHeaderBit:
        return flip(m.data, 0, header);
      case Damage::kPayloadBit:
        return flip(m.data, m.bytes > header ? header : 0, m.bytes);
      case Damage::kManyBits:
        for (int i = 0; i < 100; ++i) flip(m.data, 0, m.bytes);
        return;
      case Damage::kCutOff: {
        // Cutting off zeros would lose nothing, so cut the header instead.
        const int64_t all = m.bytes;
        m.bytes = random_.below(all);
        if (std::all_of(m.data + m.bytes, m.data + all, [](std::byte b) { return b == std::byte{0}; }))
          m.bytes = random_.below(header);
        return;
      }
      case Damage::kZeros:
        std::memset(m.data, 0, static_cast<size_t>(m.bytes));
        return;
      case Damage::kLate:  // the message of the same call of the previous vote
        return put(m, {m.call - calls_before_, m.sender, m.receiver});
      case Damage::kOthers:  // another sender's; without one yet, the same sender's of the previous vote
        return put(m, m.sender ? std::tuple{m.call, m.sender - 1, m.receiver}
                               : std::tuple{m.call - calls_before_, m.sender + 1, m.receiver});
    }
  }

  void put(ThreadGroup::Message& m, const std::tuple<int64_t, int, int>& which) {
    const auto found = sent_.find(which);
    if (found != sent_.end() && found->second.size() == static_cast<size_t>(m.bytes))
      std::copy(found->second.begin(), found->second.end(), m.data);
  }

  Damage damage_;
  int sender_, receiver_;
  Receivers receivers_;
  int64_t call_, calls_before_;
  Rng random_;
  int64_t changed_ = 0;
  std::map<std::tuple<int64_t, int, int>, std::vector<std::byte>> sent_;
};

struct Where {
  bool between;
  int64_t call;
  const char* name;
};

}  // namespace lowtide::testing
