// How signs are cut into pieces, and how pieces lie in messages. Pieces are multiples of kSignAlignment signs, so that
// none shares a byte of bits, of presence or of scales with another; what is behind the last sign is zero.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "backend/signs.h"
#include "lowtide/sign_collective.h"
#include "sign/rounds.h"
#include "sign/wire.h"

namespace lowtide {

// Signs of a shard: of all but the last ones, which may be short or empty.
constexpr int64_t shard_signs(int64_t count, int shards) {
  const int64_t units = (count + kSignAlignment - 1) / kSignAlignment;
  return (units + shards - 1) / shards * kSignAlignment;
}
constexpr int64_t signs_of_piece(int64_t count, int64_t first, int64_t piece) {
  return std::clamp<int64_t>(count - first, 0, piece);
}

// Messages of pieces of `signs` signs, a multiple of kSignAlignment.
struct PieceShape {
  int64_t signs = 0;
  bool extra = false;  // presence or scales: both take as much
  bool zeros = false;  // in results
  int ranks = 1;

  int64_t bits_bytes() const { return signs / 8; }
  int64_t extra_bytes() const { return extra ? presence_bytes(signs) : 0; }
  int64_t ballot_bytes() const { return wire::kHeaderBytes + bits_bytes() + extra_bytes(); }
  // A result begins with a Reason for each rank whose ballot is not in it.
  int64_t reasons_bytes() const { return (ranks + 7) / 8 * 8; }
  int64_t result_bytes() const { return ballot_bytes() + reasons_bytes() + (zeros ? bits_bytes() : 0); }
  static std::byte* ballot_bits(std::byte* message) { return message + wire::kHeaderBytes; }
  std::byte* ballot_extra(std::byte* message) const { return ballot_bits(message) + bits_bytes(); }
  static std::byte* reasons(std::byte* message) { return message + wire::kHeaderBytes; }
  std::byte* result_bits(std::byte* message) const { return reasons(message) + reasons_bytes(); }
  std::byte* result_extra(std::byte* message) const { return result_bits(message) + bits_bytes(); }
  std::byte* result_zeros(std::byte* message) const { return result_extra(message) + extra_bytes(); }
};

// Writes signs [first, first + shape.signs) of the ballot, zeros where it has no presence, and its presence or scales.
void fill_ballot(const SignBallot& ballot, int64_t first, const PieceShape& shape, bool counts, std::byte* message);

// Checks the scales of a piece, of `count` signs: finite and not negative.
bool sound_scales(const std::byte* scales, int64_t count);

// What is the same in all messages of a call from this rank.
wire::Header header_of(const Agreement& agreed, wire::Round round, int sender, int receiver, int64_t first);

// The results of all shards as they came, messages[i] that of owner(i), which begins at first(i). Takes over the
// owners' reasons into the outcome. found->result_crc covers weights, reasons and results.
struct ResultPlace {
  int owner;
  int64_t first;
};
Found read_results(const Agreement& agreed, const PieceShape& shape, const std::byte* messages,
                   const std::vector<ResultPlace>& places, int threads, SignOutcome* outcome);
// Copies one result to the caller's memory.
void deliver_result(const PieceShape& shape, const std::byte* message, int64_t first, int64_t count,
                    const SignResult& result);

// Who has no vote by the announcements.
void reject_unannounced(const Agreement& agreed, SignOutcome* outcome);

}  // namespace lowtide
