// The messages of the payload rounds. A shard is a run of signs that one rank decides; its size is a multiple of
// kSignAlignment, so no two shards share a byte of bits, presence or scales. In a message, everything after the last
// sign is zero.
//
//   ballot   header | bits | presence or scales
//   result   header | a Reason for each rank | bits | presence or scales | zeros
//
// Nothing here owns memory or keeps state: any thread may call any function on its own messages.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "backend/signs.h"
#include "lowtide/sign_collective.h"
#include "sign/exchange.h"
#include "sign/rounds.h"
#include "sign/wire.h"

namespace lowtide {

// Returns the signs per shard when `count` signs are cut into `shards` shards; the last shards may be short or empty.
constexpr int64_t shard_signs(int64_t count, int shards) {
  const int64_t units = (count + kSignAlignment - 1) / kSignAlignment;
  return (units + shards - 1) / shards * kSignAlignment;
}
// Returns how many of `count` signs are in the shard that begins at sign `first` and has room for `shard` signs.
constexpr int64_t signs_in_shard(int64_t count, int64_t first, int64_t shard) {
  return std::clamp<int64_t>(count - first, 0, shard);
}

// The layout of messages about shards of `signs` signs.
struct ShardLayout {
  int64_t signs = 0;
  bool extra = false;  // presence or scales, which have the same size
  bool zeros = false;  // results mark ties
  int ranks = 1;       // ranks of the collective

  int64_t bits_bytes() const { return signs / 8; }
  int64_t extra_bytes() const { return extra ? presence_bytes(signs) : 0; }
  int64_t ballot_bytes() const { return wire::kHeaderBytes + bits_bytes() + extra_bytes(); }
  int64_t reasons_bytes() const { return (ranks + 7) / 8 * 8; }
  int64_t result_bytes() const { return ballot_bytes() + reasons_bytes() + (zeros ? bits_bytes() : 0); }
  static std::byte* ballot_bits(std::byte* message) { return message + wire::kHeaderBytes; }
  std::byte* ballot_extra(std::byte* message) const { return ballot_bits(message) + bits_bytes(); }
  static std::byte* reasons(std::byte* message) { return message + wire::kHeaderBytes; }
  std::byte* result_bits(std::byte* message) const { return reasons(message) + reasons_bytes(); }
  std::byte* result_extra(std::byte* message) const { return result_bits(message) + bits_bytes(); }
  std::byte* result_zeros(std::byte* message) const { return result_extra(message) + extra_bytes(); }
};

// Returns the header of the message due from `sender` to `receiver` (or wire::kEveryone) about signs from `first` on.
wire::Header header_of(const Agreement& agreed, wire::Round round, int sender, int receiver, int64_t first);

// Writes and seals this rank's ballot for the shard that begins at `first`. The ballot holds the rank's signs (0 where
// the rank has no presence or no votes) and its presence or scales.
void write_ballot(const ExchangeCall& call, const Agreement& agreed, const ShardLayout& layout, int receiver,
                  int64_t first, std::byte* message);

// Returns, for each of `ranks` ballots from rank `first_rank` on, kFine or the reason why the ballot cannot be counted.
// The ballot of rank first_rank + i is at messages[i * bytes_each]. Does not read the payload of a rank without votes.
std::vector<wire::Reason> check_ballots(const Agreement& agreed, int first_rank, int ranks, int receiver, int64_t first,
                                        const std::byte* messages, int64_t bytes_each, int threads);

// The ballots of all ranks in the form that backends take. A ballot that cannot be counted has weight 0.
struct Voters {
  std::vector<const std::byte*> ballots, extra;  // extra: empty if the layout has none
  std::vector<uint32_t> weights;
  uint32_t votes = 0;
};
Voters voters_of(const Agreement& agreed, const ShardLayout& layout, std::byte* messages,
                 const std::vector<wire::Reason>& reasons);

// Returns true if the bfloat16 scales of `count` signs are finite and not negative.
bool sound_scales(const std::byte* scales, int64_t count);

// Writes the list of reasons of a result and zeroes everything after the list.
void begin_result(const ShardLayout& layout, const std::vector<wire::Reason>& reasons, std::byte* message);
// Votes on `count` signs from `first` on, and writes the outcome to `message`.
void vote(const ExchangeCall& call, const ShardLayout& layout, const Voters& voters, int64_t first, int64_t count,
          std::byte* message);
// Returns the vote that vote() would take, without its ballots, weights and presence.
VoteItem vote_into(const ExchangeCall& call, const ShardLayout& layout, int64_t first, int64_t count,
                   std::byte* message);

// The origin of a result: the rank that owns the shard, and the shard's first sign.
struct ResultPlace {
  int owner;
  int64_t first;
};
// Checks the results of all shards, at messages[i * layout.result_bytes()] for places[i], and adds the ballots that the
// owners left out to the outcome. The checksum in the returned Found covers weights, reasons and results.
Found check_results(const Agreement& agreed, const ShardLayout& layout, const std::byte* messages,
                    const std::vector<ResultPlace>& places, int threads, SignOutcome* outcome);
// Copies a result to the caller's memory.
void deliver_result(const ExchangeCall& call, const ShardLayout& layout, const std::byte* message, int64_t first);

// Adds to the outcome the ranks that have no votes because their announcements were damaged.
void reject_unannounced(const Agreement& agreed, SignOutcome* outcome);

}  // namespace lowtide
