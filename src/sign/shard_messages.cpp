#include "sign/shard_messages.h"

#include <cstring>

#include "core/thread_pool.h"

namespace lowtide {
namespace {

using wire::Reason;
using wire::Round;

// Copies `bits` bits and fills the rest of `room` bytes with zeros.
void copy_bits(const std::byte* from, int64_t bits, std::byte* to, int64_t room) {
  const int64_t bytes = sign_bytes(bits);
  if (bytes) std::memcpy(to, from, static_cast<size_t>(bytes));
  if (bits % 8) to[bytes - 1] &= static_cast<std::byte>((1 << (bits % 8)) - 1);
  std::memset(to + bytes, 0, static_cast<size_t>(room - bytes));
}

void clear_absent(const std::byte* presence, int64_t count, std::byte* bits) {
  constexpr int64_t kBlockBytes = kSignBlock / 8;
  for (int64_t b = 0; b * kSignBlock < count; ++b)
    if (!static_cast<bool>(presence[b / 8] >> static_cast<int>(b % 8) & std::byte{1}))
      std::memset(bits + b * kBlockBytes, 0, kBlockBytes);
}

void fill_ballot(const SignBallot& ballot, const ShardLayout& layout, int64_t first, int64_t count,
                 std::byte* message) {
  std::byte* const bits = ShardLayout::ballot_bits(message);
  std::byte* const extra = layout.ballot_extra(message);
  // A ballot without signs may have no memory.
  copy_bits(count ? ballot.bits + first / 8 : nullptr, count, bits, layout.bits_bytes());
  if (!layout.extra) return;
  if (ballot.scales && count) {
    const int64_t bytes = sign_scales(count) * int64_t{sizeof(uint16_t)};
    std::memcpy(extra, ballot.scales + first / kSignAlignment, static_cast<size_t>(bytes));
    std::memset(extra + bytes, 0, static_cast<size_t>(layout.extra_bytes() - bytes));
    return;
  }
  copy_bits(count ? ballot.presence + first / (8 * kSignBlock) : nullptr, (count + kSignBlock - 1) / kSignBlock, extra,
            layout.extra_bytes());
  if (count) clear_absent(extra, count, bits);
}

}  // namespace

wire::Header header_of(const Agreement& agreed, Round round, int sender, int receiver, int64_t first) {
  wire::Header header;
  header.round = round;
  header.sender = sender, header.receiver = receiver;
  header.announcement = agreed.announcement(sender);
  header.count = agreed.call().count, header.step = agreed.call().step;
  header.first = static_cast<uint64_t>(first);
  return header;
}

void write_ballot(const ExchangeCall& call, const Agreement& agreed, const ShardLayout& layout, int receiver,
                  int64_t first, std::byte* message) {
  const int me = call.channel.rank();
  const int64_t count = agreed.weight(me) ? signs_in_shard(call.ballot.count, first, layout.signs) : 0;
  fill_ballot(call.ballot, layout, first, count, message);
  wire::seal_message(header_of(agreed, Round::kBallot, me, receiver, first), message,
                     layout.ballot_bytes() - wire::kHeaderBytes);
}

std::vector<Reason> check_ballots(const Agreement& agreed, int first_rank, int ranks, int receiver, int64_t first,
                                  const std::byte* messages, int64_t bytes_each, int threads) {
  std::vector<Reason> reasons(agreed.reasons.begin() + first_rank, agreed.reasons.begin() + first_rank + ranks);
  parallel_for(ranks, threads, [&](int64_t i) {
    const int rank = first_rank + static_cast<int>(i);
    Reason& reason = reasons[static_cast<size_t>(i)];
    if (reason != Reason::kFine || agreed.weight(rank) == 0) return;
    wire::Header read;
    reason = wire::check_message(header_of(agreed, Round::kBallot, rank, receiver, first), messages + i * bytes_each,
                                 bytes_each - wire::kHeaderBytes, &read);
  });
  return reasons;
}

Voters voters_of(const Agreement& agreed, const ShardLayout& layout, std::byte* messages,
                 const std::vector<Reason>& reasons) {
  Voters voters;
  for (int r = 0; r < layout.ranks; ++r) {
    std::byte* const message = messages + r * layout.ballot_bytes();
    voters.ballots.push_back(ShardLayout::ballot_bits(message));
    if (layout.extra) voters.extra.push_back(layout.ballot_extra(message));
    voters.weights.push_back(reasons[static_cast<size_t>(r)] == Reason::kFine ? agreed.weight(r) : 0);
    voters.votes += voters.weights.back();
  }
  return voters;
}

bool sound_scales(const std::byte* scales, int64_t count) {
  constexpr uint16_t kInfinity = 0x7f80;  // as bfloat16; the bits of negative numbers are larger
  for (int64_t i = 0; i < sign_scales(count); ++i) {
    uint16_t scale;
    std::memcpy(&scale, scales + i * int64_t{sizeof scale}, sizeof scale);
    if (scale >= kInfinity) return false;
  }
  return true;
}

void begin_result(const ShardLayout& layout, const std::vector<Reason>& reasons, std::byte* message) {
  std::byte* const list = ShardLayout::reasons(message);
  std::memset(list, 0, static_cast<size_t>(layout.result_bytes() - wire::kHeaderBytes));
  for (size_t r = 0; r < reasons.size(); ++r) list[r] = static_cast<std::byte>(reasons[r]);
}

void vote(const ExchangeCall& call, const ShardLayout& layout, const Voters& voters, int64_t first, int64_t count,
          std::byte* message) {
  VoteItem item = vote_into(call, layout, first, count, message);
  item.ballots = voters.ballots, item.presence = voters.extra, item.weights = voters.weights;
  call.backend.vote_signs(item, call.threads, nullptr);
}

VoteItem vote_into(const ExchangeCall& call, const ShardLayout& layout, int64_t first, int64_t count,
                   std::byte* message) {
  VoteItem item;
  item.count = count;
  item.ties = call.ties, item.seed = call.seed, item.step = call.ballot.step;
  item.first_index = call.ballot.first_index + static_cast<uint64_t>(first);
  item.previous = call.ballot.previous ? call.ballot.previous + first / 8 : nullptr;
  item.result = layout.result_bits(message);
  item.zeros = layout.zeros ? layout.result_zeros(message) : nullptr;
  item.result_presence = layout.extra ? layout.result_extra(message) : nullptr;
  return item;
}

Found check_results(const Agreement& agreed, const ShardLayout& layout, const std::byte* messages,
                    const std::vector<ResultPlace>& places, int threads, SignOutcome* outcome) {
  const int64_t bytes = layout.result_bytes();
  std::vector<wire::Header> headers(places.size());
  std::vector<Reason> reasons(places.size());
  parallel_for(static_cast<int64_t>(places.size()), threads, [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    reasons[at] =
        wire::check_message(header_of(agreed, Round::kResult, places[at].owner, wire::kEveryone, places[at].first),
                            messages + i * bytes, bytes - wire::kHeaderBytes, &headers[at]);
  });
  Found found;
  found.result = agreed.weights_checksum();
  reject_unannounced(agreed, outcome);
  for (size_t i = 0; i < places.size(); ++i) {
    if (reasons[i] != Reason::kFine && found.reason == Reason::kFine)
      found.reason = reasons[i], found.culprit = places[i].owner;
    found.result = wire::checksum(&headers[i].payload_checksum, sizeof headers[i].payload_checksum, found.result);
    if (reasons[i] != Reason::kFine) continue;
    const std::byte* list = messages + static_cast<int64_t>(i) * bytes + wire::kHeaderBytes;
    for (int r = 0; r < layout.ranks; ++r) {
      const auto reason = static_cast<Reason>(list[r]);
      if (reason != Reason::kFine && reason != Reason::kNoAnnouncement)
        outcome->rejected.push_back({r, places[i].owner, wire::describe(reason)});
    }
  }
  return found;
}

void deliver_result(const ExchangeCall& call, const ShardLayout& layout, const std::byte* message, int64_t first) {
  const int64_t signs = signs_in_shard(call.ballot.count, first, layout.signs);
  if (signs == 0) return;
  const SignResult& result = call.result;
  auto* const from = const_cast<std::byte*>(message);
  std::memcpy(result.bits + first / 8, layout.result_bits(from), static_cast<size_t>(sign_bytes(signs)));
  if (result.scales)
    std::memcpy(result.scales + first / kSignAlignment, layout.result_extra(from),
                static_cast<size_t>(sign_scales(signs)) * sizeof(uint16_t));
  else if (layout.extra)
    std::memcpy(result.presence + first / (8 * kSignBlock), layout.result_extra(from),
                static_cast<size_t>(presence_bytes(signs)));
  if (layout.zeros)
    std::memcpy(result.zeros + first / 8, layout.result_zeros(from), static_cast<size_t>(sign_bytes(signs)));
}

void reject_unannounced(const Agreement& agreed, SignOutcome* outcome) {
  for (size_t r = 0; r < agreed.reasons.size(); ++r)
    if (agreed.reasons[r] != Reason::kFine)
      outcome->rejected.push_back(
          {static_cast<int>(r), -1, std::string("its announcement ") + wire::describe(agreed.reasons[r])});
}

}  // namespace lowtide
