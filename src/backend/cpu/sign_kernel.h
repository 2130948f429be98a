// Operations on signs: arguments of the kernels of one instruction set, the table that they are looked up in, and who
// calls them. Items are checked.
#pragma once

#include <bit>
#include <cstdint>

#include "backend/cpu/kernel_tables.h"
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
  uint32_t sum = 0;   // of what counts
  uint32_t bits = 0;  // that one of them has
  int planes = 0;     // that hold the sum
};

// Pieces: signs [begin, end) of an item, begin a multiple of kVoteCut, end too or the item's.
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
struct UnpackRun {
  SignItem item;
  bool stream;  // values are more than a cache holds: store them past it
};

struct SignKernels {
  void (*pack[kDTypes])(const SignItem&);
  void (*unpack[kDTypes])(const UnpackRun&);
  void (*vote)(const VoteRun&);
  void (*count)(const CountRun&);
};

// target: one Highway target bit.
SignKernels pick_signs(int64_t target);

// With several threads: cut into pieces, which the kernels of one instruction set do.
void pack_signs(const SignKernels& kernels, std::span<const SignItem> items, int threads);
void unpack_signs(const SignKernels& kernels, std::span<const SignItem> items, int threads);
void vote_signs(const SignKernels& kernels, const VoteItem& item, int threads);
void count_signs(const SignKernels& kernels, const CountItem& item, int threads);

}  // namespace lowtide::cpu
