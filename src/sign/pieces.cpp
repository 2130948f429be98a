#include "sign/pieces.h"

#include <cstring>

#include "core/crc32c.h"
#include "core/thread_pool.h"

namespace lowtide {
namespace {

using wire::Reason;
using wire::Round;

// Copies `bits` bits, and zeros up to `room` bytes.
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

}  // namespace

void fill_ballot(const SignBallot& ballot, int64_t first, const PieceShape& shape, bool counts, std::byte* message) {
  const int64_t count = counts ? signs_of_piece(ballot.count, first, shape.signs) : 0;
  std::byte* const bits = PieceShape::ballot_bits(message);
  std::byte* const extra = shape.ballot_extra(message);
  // A pointer before the end only where something is copied from it.
  copy_bits(count ? ballot.bits + first / 8 : nullptr, count, bits, shape.bits_bytes());
  if (!shape.extra) return;
  if (ballot.scales && count) {
    const int64_t bytes = sign_scales(count) * int64_t{sizeof(uint16_t)};
    std::memcpy(extra, ballot.scales + first / kSignAlignment, static_cast<size_t>(bytes));
    std::memset(extra + bytes, 0, static_cast<size_t>(shape.extra_bytes() - bytes));
    return;
  }
  copy_bits(count ? ballot.presence + first / (8 * kSignBlock) : nullptr, (count + kSignBlock - 1) / kSignBlock, extra,
            shape.extra_bytes());
  if (count) clear_absent(extra, count, bits);
}

bool sound_scales(const std::byte* scales, int64_t count) {
  constexpr uint16_t kInfinity = 0x7f80;  // bfloat16; negative numbers are above it
  for (int64_t i = 0; i < sign_scales(count); ++i) {
    uint16_t scale;
    std::memcpy(&scale, scales + i * int64_t{sizeof scale}, sizeof scale);
    if (scale >= kInfinity) return false;
  }
  return true;
}

wire::Header header_of(const Agreement& agreed, Round round, int sender, int receiver, int64_t first) {
  const wire::Announcement& a = agreed.of[static_cast<size_t>(sender)];
  wire::Header header;
  header.round = round;
  header.sender = sender, header.receiver = receiver;
  header.announcement = agreed.announcement(sender);
  header.count = a.count, header.step = a.step;
  header.first = static_cast<uint64_t>(first);
  return header;
}

Found read_results(const Agreement& agreed, const PieceShape& shape, const std::byte* messages,
                   const std::vector<ResultPlace>& places, int threads, SignOutcome* outcome) {
  const int64_t bytes = shape.result_bytes();
  const auto count = static_cast<int64_t>(places.size());
  std::vector<wire::Header> headers(places.size());
  std::vector<Reason> reasons(places.size());
  // Of a rank whose announcement is not known, what the others announced is due.
  const auto known = std::find(agreed.reasons.begin(), agreed.reasons.end(), Reason::kFine) - agreed.reasons.begin();
  parallel_for(count, threads, [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    wire::Header due = header_of(agreed, Round::kResult, static_cast<int>(known), wire::kEveryone, places[at].first);
    due.sender = places[at].owner;
    due.announcement = agreed.announcement(due.sender);
    reasons[at] = wire::check_message(due, messages + i * bytes, bytes - wire::kHeaderBytes, &headers[at]);
  });
  Found found;
  found.result_crc = agreed.weights_crc();
  reject_unannounced(agreed, outcome);
  for (size_t i = 0; i < places.size(); ++i) {
    if (reasons[i] != Reason::kFine && found.reason == Reason::kFine)
      found.reason = reasons[i], found.culprit = places[i].owner;
    found.result_crc = crc32c(&headers[i].payload_crc, sizeof headers[i].payload_crc, found.result_crc);
    if (reasons[i] != Reason::kFine) continue;
    const std::byte* list = messages + static_cast<int64_t>(i) * bytes + wire::kHeaderBytes;
    for (int r = 0; r < shape.ranks; ++r) {
      const auto reason = static_cast<Reason>(list[r]);
      if (reason != Reason::kFine && reason != Reason::kNoAnnouncement)
        outcome->rejected.push_back({r, places[i].owner, wire::describe(reason)});
    }
  }
  return found;
}

void deliver_result(const PieceShape& shape, const std::byte* message, int64_t first, int64_t count,
                    const SignResult& result) {
  const int64_t signs = signs_of_piece(count, first, shape.signs);
  if (signs == 0) return;
  auto* const from = const_cast<std::byte*>(message);
  std::memcpy(result.bits + first / 8, shape.result_bits(from), static_cast<size_t>(sign_bytes(signs)));
  if (result.scales)
    std::memcpy(result.scales + first / kSignAlignment, shape.result_extra(from),
                static_cast<size_t>(sign_scales(signs)) * sizeof(uint16_t));
  else if (shape.extra)
    std::memcpy(result.presence + first / (8 * kSignBlock), shape.result_extra(from),
                static_cast<size_t>(presence_bytes(signs)));
  if (shape.zeros)
    std::memcpy(result.zeros + first / 8, shape.result_zeros(from), static_cast<size_t>(sign_bytes(signs)));
}

void reject_unannounced(const Agreement& agreed, SignOutcome* outcome) {
  for (size_t r = 0; r < agreed.reasons.size(); ++r)
    if (agreed.reasons[r] != Reason::kFine)
      outcome->rejected.push_back(
          {static_cast<int>(r), -1, std::string("its announcement ") + wire::describe(agreed.reasons[r])});
}

}  // namespace lowtide
