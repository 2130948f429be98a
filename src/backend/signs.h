// Operations on signs, one bit each: sign i is bit i % 8 of byte i / 8 (numpy's bitorder "little"), or with `big` bit
// 7 - i % 8, 1 for +, which means x >= 0: both zeros are +, a NaN is not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/layout.h"
#include "lowtide/tensor.h"

namespace lowtide {

// Signs that share one presence bit: a block whose values are all zero has no presence, and takes no part in a vote.
inline constexpr int64_t kSignBlock = 64;
// Alignment of a tensor's first sign among others' signs, so that no two tensors share a byte of bits or presence, or a
// scale of error feedback.
inline constexpr int64_t kSignAlignment = 1024;

// The most signs of one call: everything computed from their number fits into 64 bits.
inline constexpr int64_t kMostSigns = int64_t{1} << 60;

// Signs that share a scale of error feedback (portable/feedback.h).
inline constexpr int64_t kFeedbackSigns = 1024;

constexpr int64_t sign_bytes(int64_t signs) { return (signs + 7) / 8; }
constexpr int64_t presence_bytes(int64_t signs) { return sign_bytes((signs + kSignBlock - 1) / kSignBlock); }

// Values and the range of the sign buffer that holds their signs. Borrowed for the call; on a device, in memory that it
// can address.
struct SignItem {
  DType dtype = DType::kF32;
  int64_t first = 0, count = 0;  // values[i] belongs to sign first + i of `bits`
  // [count], contiguous, aligned to an element.
  void* values = nullptr;
  // At least (first + count + 7) / 8 bytes, of any alignment. Packing keeps signs before `first`, and clears the rest
  // of the last sign's byte: pieces that share a byte must be packed in order.
  std::byte* bits = nullptr;
  // For unpacking, laid out like bits, or nullptr: 1 makes the value 0 instead of +1 or -1.
  const std::byte* zeros = nullptr;
  // Bit b belongs to the block of signs from b * kSignBlock; may be nullptr. Packing sets it if any value is not zero
  // (a NaN is not), and treats presence bytes like the bytes of bits; `first` must then be a multiple of
  // kSignAlignment. Bits themselves do not depend on it. Unpacking makes values of a block without presence 0.
  std::byte* presence = nullptr;
  // For packing: the sign of zeros.
  bool zero_is_plus = true;
  // For packing: set to 1 if a value is infinite or NaN, otherwise unchanged. nullptr: not checked.
  uint32_t* nonfinite = nullptr;
  // For unpacking: one bfloat16 per kFeedbackSigns signs from sign 0 of `bits`: values are +scale and -scale, rounded
  // to dtype. nullptr: +1 and -1. `first` must then be a multiple of kSignAlignment.
  const uint16_t* scales = nullptr;
  // The order of bits and zeros, not of presence; `first` must then be a multiple of 8.
  bool big = false;
};

enum class TieRule : int32_t {
#define LT_TIE(number, name) name = number,
#include "portable/ties.def"
#undef LT_TIE
};

// A weighted majority of packed signs. A voter's weight is its number of votes; a voter of weight 0 is absent. The
// spans, and their contents except ballots, are host memory and borrowed for the call.
struct VoteItem {
  int64_t count = 0;                          // signs
  std::span<const std::byte* const> ballots;  // [voters], (count + 7) / 8 bytes each, any alignment; nullptr if absent
  std::span<const uint32_t> weights;          // [voters], with a sum below 2^31; empty: each 1
  TieRule ties = TieRule::kHash;
  uint64_t seed = 0, step = 0, first_index = 0;  // kHash; first_index: of sign 0 in the whole
  const std::byte* previous = nullptr;           // kPrevious: laid out like a ballot; may be the result
  std::byte* result = nullptr;                   // laid out like a ballot, and may be one; bits after the last are 0
  std::byte* zeros = nullptr;                    // kZero: laid out like a ballot; 1 for equal votes
  // [voters] or empty: presence_bytes(count) each, nullptr if the ballot is. The votes of a block are the weights of
  // voters with presence; ballots must be 0 where they have none. A sign without votes is 0, and not a tie. (Counters
  // of an earlier count_signs are ballots of weights 1, 2, 4 ..., and the planes counted from presences are their
  // presences.)
  std::span<const std::byte* const> presence;
  std::byte* result_presence = nullptr;  // with presence: presence_bytes(count), 1 if there was a vote
  bool big = false;                      // the order of ballots, previous, result and zeros; then there is no presence
};

// Sums of weights, one per sign, in bit planes: the input of a vote. Presences are counted like signs, one per block.
struct CountItem {
  int64_t count = 0;
  std::span<const std::byte* const> ballots;  // as in VoteItem
  std::span<const uint32_t> weights;
  std::span<std::byte* const> planes;  // [bit_width(sum of weights)] or more, laid out like ballots; must not be
                                       // ballots
};

// A parameter that moves by signs: p = p - (p decay + lr sign), with sign +1, -1 or, if `zeros` has a 1, 0. Blocks
// without presence keep every bit. Computed in float32, rounded to nearest.
struct ApplyItem {
  DType dtype = DType::kF32;
  int64_t first = 0;  // index of its first sign, a multiple of kSignAlignment
  void* param = nullptr;
  const Layout* layout = nullptr;       // one sign for each of its elements, in row-major order
  const std::byte* bits = nullptr;      // as SignItem::bits
  const std::byte* zeros = nullptr;     // or nullptr
  const std::byte* presence = nullptr;  // or nullptr: all present
  float lr = 0, decay = 0;              // decay: lr * weight_decay
};

// Turns values and their residual into signs, scales and the next residual (portable/feedback.h), in one pass.
struct FeedbackItem {
  int64_t first = 0, count = 0;  // first: a multiple of kSignAlignment
  // Either [count] values of `dtype`, contiguous, times value_scale ...
  DType dtype = DType::kF32;
  const void* values = nullptr;
  float value_scale = 1.f;
  // ... or the weighted mean of the voters' values: their bits and scales, indexed like the item's own.
  std::span<const std::byte* const> ballots;
  std::span<const uint16_t* const> ballot_scales;
  std::span<const uint32_t> weights;  // empty: each 1
  // Residual from sign `first` on: a codec of codecs.def, one row, signed. codes nullptr: no residual (all zero, and
  // discarded).
  int codec = 0;
  void* codes = nullptr;
  float* scales = nullptr;
  std::byte* bits = nullptr;       // like SignItem::bits; whole bytes are written, with zeros after the last sign
  uint16_t* bit_scales = nullptr;  // one bfloat16 per kFeedbackSigns signs from sign 0 of `bits`
};

// Throw kInvalidArgument for an invalid item, naming the reason; they only read host memory.
void check(const SignItem& item);
void check(const VoteItem& item);
void check(const CountItem& item);
void check(const ApplyItem& item);
void check_residual_codec(int codec);  // for error feedback
void check(const FeedbackItem& item);

// Sum of the weights of a checked item, and voter v's weight.
uint32_t weight_sum(std::span<const std::byte* const> ballots, std::span<const uint32_t> weights);
inline uint32_t weight_sum(const VoteItem& item) { return weight_sum(item.ballots, item.weights); }
inline uint32_t weight_of(std::span<const uint32_t> weights, size_t v) { return weights.empty() ? 1 : weights[v]; }
inline uint32_t weight_of(const VoteItem& item, size_t v) { return weight_of(item.weights, v); }

}  // namespace lowtide
