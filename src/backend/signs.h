// Operations on signs, one bit each. Sign i is bit i % 8 of byte i / 8 (numpy's bitorder "little") or, with `big`, bit
// 7 - i % 8. The bit is 1 for +, which means x >= 0: both zeros are +, and a NaN is not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/layout.h"
#include "lowtide/tensor.h"

namespace lowtide {

// The number of signs that share a presence bit. A block of zeros has no presence and takes no part in a vote.
inline constexpr int64_t kSignBlock = 64;
// The alignment of each tensor's first sign in a buffer of several tensors, so that no two tensors share a byte of bits
// or presence, or a scale of error feedback.
inline constexpr int64_t kSignAlignment = 1024;

// The most signs of one call, so that everything computed from their number fits 64 bits.
inline constexpr int64_t kMostSigns = int64_t{1} << 60;

// The number of signs that share a scale of error feedback (portable/feedback.h).
inline constexpr int64_t kFeedbackSigns = 1024;

constexpr int64_t sign_bytes(int64_t signs) { return (signs + 7) / 8; }
constexpr int64_t presence_bytes(int64_t signs) { return sign_bytes((signs + kSignBlock - 1) / kSignBlock); }

// Values and the range of the sign buffer that holds their signs. The memory is borrowed for the call; for a device, it
// is memory that the device can address.
struct SignItem {
  DType dtype = DType::kF32;
  int64_t first = 0, count = 0;  // values[i] belongs to sign first + i of `bits`
  // [count], contiguous, aligned to the element size.
  void* values = nullptr;
  // At least (first + count + 7) / 8 bytes of any alignment. Packing keeps signs before `first` and clears the rest of
  // the last sign's byte, so pieces that share a byte must be packed in order.
  std::byte* bits = nullptr;
  // For unpacking: laid out like bits, or nullptr. A 1 makes the value 0 instead of +1 or -1.
  const std::byte* zeros = nullptr;
  // Bit b belongs to the block of signs from b * kSignBlock on. May be nullptr; otherwise `first` must be a multiple of
  // kSignAlignment. Packing sets a bit if any value of the block, such as a NaN, is not zero, and treats presence bytes
  // like the bytes of bits. Bits do not depend on presence. Unpacking makes the values of a block without presence 0.
  std::byte* presence = nullptr;
  // For packing: whether zeros are +.
  bool zero_is_plus = true;
  // For packing: set to 1 if a value is infinite or NaN, otherwise unchanged. With nullptr, values are not checked.
  uint32_t* nonfinite = nullptr;
  // For unpacking: one bfloat16 per kFeedbackSigns signs from sign 0 of `bits`. Values are +scale and -scale, rounded
  // to dtype, and `first` must be a multiple of kSignAlignment. With nullptr, values are +1 and -1.
  const uint16_t* scales = nullptr;
  // Reverses the order of bits and zeros within bytes, but not of presence. `first` must then be a multiple of 8.
  bool big = false;
};

enum class TieRule : int32_t {
#define LT_TIE(number, name) name = number,
#include "portable/ties.def"
#undef LT_TIE
};
// Public names are those of ties.def in lower case, without the k. Throws kInvalidArgument for an unknown name; the
// message names all rules.
TieRule find_tie_rule(const std::string& name);
// Returns the rule's number as text if the rule does not exist.
std::string tie_rule_name(TieRule rule);

// A weighted majority of packed signs. A voter's weight is its number of votes; a voter with weight 0 is absent. The
// spans and their pointers and weights are host memory; the pointers refer to memory that the backend can address.
// Everything is borrowed for the call.
struct VoteItem {
  int64_t count = 0;                          // signs
  std::span<const std::byte* const> ballots;  // [voters], (count + 7) / 8 bytes each, any alignment; nullptr if absent
  std::span<const uint32_t> weights;          // [voters], with a sum below 2^31; if empty, each is 1
  TieRule ties = TieRule::kHash;
  uint64_t seed = 0, step = 0, first_index = 0;  // for kHash; first_index: index of sign 0 in the whole tensor
  const std::byte* previous = nullptr;           // for kPrevious: laid out like a ballot; may be the result
  std::byte* result = nullptr;                   // laid out like a ballot, and may be one; unused bits are 0
  std::byte* zeros = nullptr;                    // for kZero: laid out like a ballot; 1 for equal votes
  // [voters] or empty; presence_bytes(count) each, or nullptr if the ballot is nullptr. The votes of a block are the
  // weights of the voters with presence there; other voters' ballots must be 0 there. A sign without votes is 0, not a
  // tie. (The planes of an earlier count_signs are ballots of weights 1, 2, 4 ..., and planes counted from presences
  // are their presences.)
  std::span<const std::byte* const> presence;
  std::byte* result_presence = nullptr;  // with presence: presence_bytes(count), 1 if the block has votes
  bool big = false;                      // the bit order of ballots, previous, result and zeros; excludes presence
};

// Sums of weights, one per sign, in bit planes for a vote. Presences are counted like signs, one per block.
struct CountItem {
  int64_t count = 0;
  std::span<const std::byte* const> ballots;  // as in VoteItem
  std::span<const uint32_t> weights;
  std::span<std::byte* const> planes;  // [bit_width(sum of weights)] or more, laid out like ballots but separate from
                                       // them
};

// A parameter that is updated by signs: p = p - (p decay + lr sign), where sign is +1, -1 or, if `zeros` has a 1, 0.
// Blocks without presence keep every bit. Computed in float32 and rounded to nearest.
struct ApplyItem {
  DType dtype = DType::kF32;
  int64_t first = 0;  // index of the parameter's first sign, a multiple of kSignAlignment
  void* param = nullptr;
  const Layout* layout = nullptr;       // one sign for each element, in row-major order
  const std::byte* bits = nullptr;      // as SignItem::bits
  const std::byte* zeros = nullptr;     // or nullptr
  const std::byte* presence = nullptr;  // or nullptr if all blocks are present
  float lr = 0, decay = 0;              // decay is lr * weight_decay
};

// Values and their residual, which one pass turns into signs, scales and the next residual (portable/feedback.h).
struct FeedbackItem {
  int64_t first = 0, count = 0;  // first: a multiple of kSignAlignment
  // The input is either [count] contiguous values of `dtype`, multiplied by value_scale, ...
  DType dtype = DType::kF32;
  const void* values = nullptr;
  float value_scale = 1.f;
  // ... or the weighted mean of the voters' values, given by bits and scales that are indexed like the item's.
  std::span<const std::byte* const> ballots;
  std::span<const uint16_t* const> ballot_scales;
  std::span<const uint32_t> weights;  // if empty, each is 1
  // The residual from sign `first` on: a codec of codecs.def, one row, signed. If `codes` is nullptr, the residual is
  // zero and the next one is discarded.
  int codec = 0;
  void* codes = nullptr;
  float* scales = nullptr;
  std::byte* bits = nullptr;       // like SignItem::bits; whole bytes are written, with zeros after the last sign
  uint16_t* bit_scales = nullptr;  // one bfloat16 per kFeedbackSigns signs from sign 0 of `bits`
};

// These functions throw kInvalidArgument for an invalid item, with the reason. They read only host memory.
void check(const SignItem& item);
void check(const VoteItem& item);
void check(const CountItem& item);
void check(const ApplyItem& item);
void check_residual_codec(int codec);  // for error feedback
void check(const FeedbackItem& item);

// Return the sum of the weights of a checked item, and the weight of voter v.
uint32_t weight_sum(std::span<const std::byte* const> ballots, std::span<const uint32_t> weights);
inline uint32_t weight_sum(const VoteItem& item) { return weight_sum(item.ballots, item.weights); }
inline uint32_t weight_of(std::span<const uint32_t> weights, size_t v) { return weights.empty() ? 1 : weights[v]; }
inline uint32_t weight_of(const VoteItem& item, size_t v) { return weight_of(item.weights, v); }

}  // namespace lowtide
