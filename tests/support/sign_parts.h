// Votes in parts: cuts a vote into cases, and takes them on a rank.
#pragma once

#include "support/sign_ranks.h"
#include "support/test.h"

namespace lowtide::testing {

// Returns signs [first, first + count) of a vote as a vote; first: a multiple of 1024.
inline VoteCase part_of(const VoteCase& of, int64_t first, int64_t count) {
  VoteCase out = of;
  out.count = count, out.first_index = of.first_index + static_cast<uint64_t>(first);
  const auto cut = [](const Bits& bits, int64_t from, int64_t number) {
    const auto begin = bits.begin() + from / 8;
    return Bits(begin, begin + static_cast<int64_t>(sign_bytes(number)));
  };
  for (Bits& ballot : out.ballots) ballot = cut(ballot, first, count);
  for (Bits& presence : out.presence)
    presence = cut(presence, first / kSignBlock, (count + kSignBlock - 1) / kSignBlock);
  out.previous = cut(of.previous, first, count);
  return out;
}

// Cuts a vote before these signs, in ascending order.
inline std::vector<VoteCase> parts_of(const VoteCase& of, const std::vector<int64_t>& cuts) {
  std::vector<VoteCase> out;
  int64_t first = 0;
  for (const int64_t cut : cuts) out.push_back(part_of(of, first, cut - first)), first = cut;
  out.push_back(part_of(of, first, of.count - first));
  return out;
}

using PartResults = std::vector<VoteResult>;

inline PartResults room_for(const std::vector<VoteCase>& parts) {
  PartResults out;
  for (const VoteCase& part : parts) out.emplace_back(part.count);
  return out;
}

inline VoteResult joined(const PartResults& parts) {
  VoteResult out(0);
  for (const VoteResult& part : parts) {
    out.bits.insert(out.bits.end(), part.bits.begin(), part.bits.end());
    out.presence.insert(out.presence.end(), part.presence.begin(), part.presence.end());
    out.zeros.insert(out.zeros.end(), part.zeros.begin(), part.zeros.end());
  }
  return out;
}

// Changes the ballot of a part.
using Change = std::function<void(size_t part, SignBallot& ballot)>;

// Takes the parts in order, until one is not applied. outcomes: receives the outcome of each part taken, or nullptr.
inline SignOutcome vote_in_parts(SignCollective& collective, const std::vector<VoteCase>& parts, int rank,
                                 PartResults& results, std::vector<SignOutcome>* outcomes = nullptr,
                                 const Change& change = {}) {
  SignOutcome last;
  for (size_t i = 0; i < parts.size(); ++i) {
    SignBallot ballot = parts[i].ballot(rank);
    ballot.part = static_cast<uint32_t>(i), ballot.more = i + 1 < parts.size();
    if (change) change(i, ballot);
    last = collective.vote(ballot, results[i].memory());
    if (outcomes) outcomes->push_back(last);
    if (!last.applied) break;
  }
  return last;
}

}  // namespace lowtide::testing
