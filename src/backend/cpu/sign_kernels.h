// Operations on signs: arguments of the kernels of one instruction set, the tables that they are looked up in, and who
// calls them. Kernels get items that are checked. Steps' ballots, moves by signs and error feedback make no array of
// floats but tiles that stay in the cache.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/cpu/kernel_tables.h"
#include "backend/cpu/sign_form.h"
#include "backend/signs.h"

namespace lowtide::cpu {

// Votes and counts are cut at multiples of this many signs: their presences are whole 64-bit words.
inline constexpr int64_t kVoteCut = 64 * kSignBlock;

// Who votes: looked at once for all pieces.
struct Voters {
  Voters(std::span<const std::byte* const> ballots, std::span<const uint32_t> weights, bool equal_is_one);

  // weights[v]: what counts of voter v's.
  uint32_t operator[](size_t v) const {
    if (weights.empty()) return 1;
    return equal ? static_cast<uint32_t>(weights[v] != 0) : weights[v];
  }

  std::span<const std::byte* const> ballots;
  std::span<const uint32_t> weights;
  bool equal;         // weights that are not 0 are the same, and count as 1: for a majority, which needs no sums
  uint32_t sum = 0;   // weights that count
  uint32_t bits = 0;  // that one of them has
  int planes = 0;     // that hold the sum
};

// Pieces: signs [begin, end) of an item, begin a multiple of kVoteCut, end too or the item's.
struct VoteRun {
  const VoteItem& item;
  const Voters& voters;
  int64_t begin, end;
  SignForm form = {};
};
struct CountRun {
  const CountItem& item;
  const Voters& voters;
  int64_t begin, end;
};
struct PackRun {
  SignItem item;
  SignForm form = {};
};
struct UnpackRun {
  SignItem item;
  bool stream;  // values are more than a cache holds: store them past it
  SignForm form = {};
};

struct SignKernels {
  void (*pack[kDTypes])(const PackRun&);
  void (*unpack[kDTypes])(const UnpackRun&);
  void (*vote)(const VoteRun&);
  void (*count)(const CountRun&);
};

// target: one Highway target bit.
SignKernels pick_signs(int64_t target);

// Signs of `words` * 64 floats to as many words, and to present[w] whether one of word w's is not zero.
using PackFloats = void (*)(const float* values, int words, bool zero_is_plus, uint64_t* bits, bool* present);

// A run of a parameter that moves by signs. Element 0 has the first bit of a byte of signs and of presence.
struct ApplyRun {
  void* param;
  int64_t n;
  const std::byte *bits, *zeros, *presence;  // the latter two or nullptr
  float lr, decay;
};
using ApplyKernel = void (*)(const ApplyRun&);

// Values and residual from the start of a block of feedback on. Arrays begin with the run.
struct FeedbackRun {
  const void* values;
  float value_scale;
  int64_t n;
  void* codes;  // codes and scales: nullptr without residual
  float* scales;
  std::byte* bits;
  uint16_t* bit_scales;
};
using FeedbackKernel = void (*)(const FeedbackRun&);

// sums[i] += sign i of `bits` times weighted_scale, for i < n <= kFeedbackBlock; sums has whole words of 64.
using AddBallot = void (*)(const std::byte* bits, float weighted_scale, int n, float* sums);

struct SignStepKernels {
  PackFloats pack;
  ApplyKernel apply[kDTypes];
  FeedbackKernel feedback[kCodecs + 1][kDTypes];  // [kCodecs]: without residual
  AddBallot add_ballot;
};

// target: one Highway target bit.
SignStepKernels pick_sign_step(int64_t target);

// Elements of a ballot that are in the making at a time. (Zen 4, Lion with float32 state from memory: 1.1 times what
// reading and writing takes; four times as many: 1.6 to 1.8, for memory waits meanwhile.)
inline constexpr int kBallotTile = 1024;

// Scratch tile for one piece of a ballot. The step runs on zeros, so the tile holds the update; its signs are then
// packed beside those of pieces that other threads make.
class BallotTile {
 public:
  // The floats for n <= kBallotTile elements from `sign` on, all zero.
  float* begin(int64_t sign, int n);
  // Their signs go to bits and presence (nullptr: nowhere), which hold zeros there.
  void end(const SignStepKernels& kernels, bool zero_is_plus, std::byte* bits, std::byte* presence) const;

 private:
  static constexpr int kWord = static_cast<int>(kSignBlock);
  // Word for word as the signs are: the first float belongs to a sign that begins a word.
  alignas(64) float values_[kBallotTile + 2 * kWord];
  int64_t first_word_ = 0;
  int lead_ = 0, count_ = 0, words_ = 0;
};

// With several threads: cut into pieces, which the kernels of one instruction set do. Throw kInvalidArgument for items
// that make no sense.
void pack_signs(const SignKernels& kernels, std::span<const SignItem> items, SignForm form, int threads);
void unpack_signs(const SignKernels& kernels, std::span<const SignItem> items, SignForm form, int threads);
void vote_signs(const SignKernels& kernels, const VoteItem& item, SignForm form, int threads);
void count_signs(const SignKernels& kernels, const CountItem& item, int threads);
void apply_signs(const SignStepKernels& kernels, std::span<const ApplyItem> items, int threads);
void feedback(const SignStepKernels& kernels, std::span<const FeedbackItem> items, int threads);

}  // namespace lowtide::cpu
