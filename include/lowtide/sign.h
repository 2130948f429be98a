// Signs of values in host memory as bits, and majorities of them: 32 times less than float32, 16 times less than
// bfloat16.
//
// A sign is one bit: 1 for +, which means x >= 0: both zeros are +, a NaN of either sign is not. Bits behind the last
// sign in its byte are 0. Everything is computed in integers: results are the same on every machine, whatever the
// number of threads.
//
// Memory is borrowed for the call. Any thread, any number of them at a time. Errors (lowtide/error.h) are
// kInvalidArgument, naming what was got and wanted: nothing was written then; and std::bad_alloc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lowtide/export.h"
#include "lowtide/tensor.h"

namespace lowtide::sign {

// Where sign i is in byte i / 8. Values are part of the C ABI: never renumber.
enum class BitOrder : int32_t {
  kLittle = 0,  // bit i % 8, as numpy's bitorder="little": what costs nothing
  kBig = 1,     // bit 7 - i % 8, as numpy's default
};

// What a sign becomes for which + and - have equally many votes. Values are part of the C ABI: never renumber.
enum class Ties : int32_t {
  kHash = 0,  // a fair bit of (seed, step, index of the sign in the whole): the same wherever it is computed
  kPlus = 1,
  kMinus = 2,
  kZero = 3,      // -, and marked in `zeros`
  kPrevious = 4,  // that of an earlier result
};

// Bytes of `count` signs, from 0 to 2^60.
constexpr int64_t packed_bytes(int64_t count) { return (count + 7) / 8; }

// Voters that a majority may have.
inline constexpr int64_t kMostBallots = 65535;

struct Options {
  BitOrder order = BitOrder::kLittle;
  int threads = 0;  // incl. the caller; 0: one per core this process may run on
};

// values: [count], contiguous, aligned to an element. bits: [packed_bytes(count)], any alignment; no byte of values.
LT_API void pack(DType dtype, const void* values, int64_t count, std::span<std::byte> bits,
                 const Options& options = {});

// +1 and -1; where `zeros` has a 1, 0. bits: [packed_bytes(count)]. values: [count], contiguous, aligned to an element;
// no byte of the others. zeros: empty, or as bits.
LT_API void unpack(std::span<const std::byte> bits, DType dtype, void* values, int64_t count,
                   std::span<const std::byte> zeros = {}, const Options& options = {});

struct Vote {
  int64_t count = 0;                          // signs
  std::span<const std::byte* const> ballots;  // 1 to 65,535 voters: [packed_bytes(count)] each, any alignment
  // Votes of each voter, of a sum below 2^31; empty: each 1. A voter of weight 0 is absent, and its ballot not read (it
  // may be nullptr). Without any votes all signs are ties.
  std::span<const uint32_t> weights = {};
  Ties ties = Ties::kHash;
  uint64_t seed = 0, step = 0;          // kHash
  uint64_t offset = 0;                  // kHash: index of sign 0 in the whole, of which this may be a part
  const std::byte* previous = nullptr;  // kPrevious: as a ballot; may be the result
  Options options = {};                 // the order is that of all bits
};

// result: [packed_bytes(count)]; may be a ballot, and otherwise shares no byte with one. zeros: for kZero as the
// result, apart from everything else, 1 where there was a tie; empty for other rules.
LT_API void majority(const Vote& vote, std::span<std::byte> result, std::span<std::byte> zeros = {});

}  // namespace lowtide::sign
