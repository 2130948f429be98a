// Operations on signs, one bit each: sign i is bit i % 8 of byte i / 8 (numpy's bitorder "little"), 1 for +, which
// means x >= 0: both zeros are +, a NaN is not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lowtide/tensor.h"

namespace lowtide {

// Values, and their signs among others'. Borrowed for the call; on a device, memory that it can address.
struct SignItem {
  DType dtype = DType::kF32;
  int64_t first = 0, count = 0;  // values[i] belongs to sign first + i of `bits`
  // [count], contiguous, aligned to an element.
  void* values = nullptr;
  // At least (first + count + 7) / 8 bytes, of any alignment. Packing keeps signs before `first`, and clears those
  // behind the last in its byte: pieces that share a byte are packed in order.
  std::byte* bits = nullptr;
  // For unpacking, laid out as bits, or nullptr: 1 makes the value 0 and not +1 or -1.
  const std::byte* zeros = nullptr;
};

enum class TieRule : int32_t {
#define LT_TIE(number, name) name = number,
#include "portable/ties.def"
#undef LT_TIE
};

// A weighted majority of packed signs. A voter's weight is its number of votes; a voter of weight 0 is absent. The
// spans, and what they hold besides ballots, are host memory and borrowed for the call.
struct VoteItem {
  int64_t count = 0;                          // signs
  std::span<const std::byte* const> ballots;  // [voters], (count + 7) / 8 bytes each, any alignment; nullptr if absent
  std::span<const uint32_t> weights;          // [voters], of a sum below 2^31; empty: each 1
  TieRule ties = TieRule::kHash;
  uint64_t seed = 0, step = 0, first_index = 0;  // kHash; first_index: of sign 0 in the whole
  const std::byte* previous = nullptr;           // kPrevious: as a ballot; may be the result
  std::byte* result = nullptr;                   // as a ballot, and may be one; bits behind the last are 0
  std::byte* zeros = nullptr;                    // kZero: as a ballot; 1 where votes were equal
};

// Throw kInvalidArgument for what can be no item, naming it; values of host memory are looked at only.
void check(const SignItem& item);
void check(const VoteItem& item);

// Sum of the weights of a checked item, and voter v's weight.
uint32_t weight_sum(const VoteItem& item);
inline uint32_t weight_of(const VoteItem& item, size_t v) { return item.weights.empty() ? 1 : item.weights[v]; }

}  // namespace lowtide
