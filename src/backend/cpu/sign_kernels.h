// Operations on signs: arguments and tables of the kernels of one instruction set, and the functions that call them.
// Kernels get checked items. Ballots of steps, moves by signs and error feedback use tiles that stay in the cache
// instead of arrays of floats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/cpu/kernel_tables.h"
#include "backend/signs.h"

namespace lowtide::cpu {

// Votes and counts are cut at multiples of this many signs, so that their presences are whole 64-bit words.
inline constexpr int64_t kVoteCut = 64 * kSignBlock;

// The voters, examined once for all pieces.
struct Voters {
  Voters(std::span<const std::byte* const> ballots, std::span<const uint32_t> weights, bool equal_is_one);

  // Returns the effective weight of voter v.
  uint32_t operator[](size_t v) const {
    if (weights.empty()) return 1;
    return equal ? static_cast<uint32_t>(weights[v] != 0) : weights[v];
  }

  std::span<const std::byte* const> ballots;
  std::span<const uint32_t> weights;
  bool equal;         // all nonzero weights are equal and count as 1: a majority needs no sums then
  uint32_t sum = 0;   // sum of the effective weights
  uint32_t bits = 0;  // the bits that are set in any of them
  int planes = 0;     // number of planes that hold the sum
};

// Signs [begin, end) of an item; begin is a multiple of kVoteCut, and so is `end` unless it is the item's end.
struct VoteRun {
  const VoteItem& item;
  const Voters& voters;
  int64_t begin, end;
};
struct CountRun {
  const CountItem& item;
  const Voters& voters;
  int64_t begin, end;
};
struct PackRun {
  SignItem item;
  bool sign_bit = false;  // the bit is 1 for a clear sign bit, whatever the value, including -0 and NaNs
};
struct UnpackRun {
  SignItem item;
  bool stream;  // values exceed the cache, so stores bypass it
};

struct SignKernels {
  void (*pack[kDTypes])(const PackRun&);
  void (*unpack[kDTypes])(const UnpackRun&);
  void (*vote)(const VoteRun&);
  void (*count)(const CountRun&);
};

// target: one Highway target bit.
SignKernels pick_signs(int64_t target);

// Packs the signs of `words` * 64 floats into as many words, and sets present[w] if any value of word w is not zero.
using PackFloats = void (*)(const float* values, int words, bool zero_is_plus, uint64_t* bits, bool* present);

// A run of a parameter that moves by signs. Element 0 has the first bit of a byte of signs and of a byte of presence.
struct ApplyRun {
  void* param;
  int64_t n;
  const std::byte *bits, *zeros, *presence;  // zeros and presence may be nullptr
  float lr, decay;
};
using ApplyKernel = void (*)(const ApplyRun&);

// Values and residual from the start of a feedback block on. Arrays begin at the run.
struct FeedbackRun {
  const void* values;
  float value_scale;
  int64_t n;
  void* codes;  // codes and scales are nullptr without a residual
  float* scales;
  std::byte* bits;
  uint16_t* bit_scales;
};
using FeedbackKernel = void (*)(const FeedbackRun&);

// Adds sign i of `bits` times weighted_scale to sums[i], for i < n <= kFeedbackBlock; sums has whole words of 64.
using AddBallot = void (*)(const std::byte* bits, float weighted_scale, int n, float* sums);

struct SignStepKernels {
  PackFloats pack;
  ApplyKernel apply[kDTypes];
  FeedbackKernel feedback[kCodecs + 1][kDTypes];  // [kCodecs]: without a residual
  AddBallot add_ballot;
};

// target: one Highway target bit.
SignStepKernels pick_sign_step(int64_t target);

// The elements of a ballot that are in progress at a time. (Zen 4, Lion with float32 state from memory: 1.1 times the
// time of reading and writing; with four times as many elements 1.6 to 1.8 times, because memory waits meanwhile.)
inline constexpr int kBallotTile = 1024;

// A scratch tile for one piece of a ballot. The step runs on zeros, so the tile holds the update; its signs are then
// packed next to the pieces of other threads.
class BallotTile {
 public:
  // Returns zeroed floats for n <= kBallotTile elements from `sign` on.
  float* begin(int64_t sign, int n);
  // Writes their signs to bits and, unless nullptr, presence, which must hold zeros there.
  void end(const SignStepKernels& kernels, bool zero_is_plus, std::byte* bits, std::byte* presence) const;

 private:
  static constexpr int kWord = static_cast<int>(kSignBlock);
  // Aligned to words like the signs: the first float belongs to a sign that begins a word.
  alignas(64) float values_[kBallotTile + 2 * kWord];
  int64_t first_word_ = 0;
  int lead_ = 0, count_ = 0, words_ = 0;
};

// These cut the items into pieces for threads and their kernels. They throw kInvalidArgument for inconsistent items.
void pack_signs(const SignKernels& kernels, std::span<const SignItem> items, bool sign_bit, int threads);
void unpack_signs(const SignKernels& kernels, std::span<const SignItem> items, int threads);
void vote_signs(const SignKernels& kernels, const VoteItem& item, int threads);
void count_signs(const SignKernels& kernels, const CountItem& item, int threads);
void apply_signs(const SignStepKernels& kernels, std::span<const ApplyItem> items, int threads);
void feedback(const SignStepKernels& kernels, std::span<const FeedbackItem> items, int threads);

}  // namespace lowtide::cpu
