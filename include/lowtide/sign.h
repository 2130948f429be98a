// Signs of values in host memory as bits, and majorities of them: 32 times smaller than float32, 16 times smaller than
// bfloat16.
//
// A sign is one bit: 1 for +, which means x >= 0. Both zeros are +; a NaN of either sign is -. Bits after the last sign
// in its byte are 0. All computation uses integers: results are the same on every machine, for any number of threads.
//
// Threads: any, concurrently. Memory is the caller's, borrowed for the call. Errors: Error (kInvalidArgument), which
// says what the call got and wanted, and std::bad_alloc; a call that throws has written nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lowtide/error.h"
#include "lowtide/export.h"
#include "lowtide/tensor.h"

namespace lowtide::sign {

// The position of sign i in byte i / 8. Part of the C ABI: never renumber.
enum class BitOrder : int32_t {
  kLittle = 0,  // bit i % 8, like numpy's bitorder="little"; costs nothing
  kBig = 1,     // bit 7 - i % 8, like numpy's default
};

// The sign that wins if + and - have equally many votes. Part of the C ABI: never renumber.
enum class Ties : int32_t {
  kHash = 0,  // a fair bit of (seed, step, index of the sign in the whole), the same on every machine
  kPlus = 1,
  kMinus = 2,
  kZero = 3,      // -, and marked in `zeros`
  kPrevious = 4,  // the sign in an earlier result
};

// Bytes that hold `count` signs, 0 to 2^60 of them.
constexpr int64_t packed_bytes(int64_t count) { return (count + 7) / 8; }

// The largest number of voters in a majority.
inline constexpr int64_t kMostBallots = 65535;

struct Options {
  BitOrder order = BitOrder::kLittle;
  int threads = 0;  // the caller included; 0: one per core that this process may run on
};

// Packs the signs of values[count], contiguous and aligned to an element. bits: [packed_bytes(count)], of any
// alignment, sharing no byte with values.
LT_API void pack(DType dtype, const void* values, int64_t count, std::span<std::byte> bits,
                 const Options& options = {});

// Unpacks to +1 and -1, and to 0 where `zeros` has a 1. bits: [packed_bytes(count)]. values: [count], contiguous and
// aligned to an element, sharing no byte with the others. zeros: empty, or laid out as bits.
LT_API void unpack(std::span<const std::byte> bits, DType dtype, void* values, int64_t count,
                   std::span<const std::byte> zeros = {}, const Options& options = {});

// The arguments of a majority.
struct Vote {
  int64_t count = 0;                          // signs
  std::span<const std::byte* const> ballots;  // 1 to 65,535 voters: [packed_bytes(count)] each, any alignment
  // Votes of each voter, less than 2^31 in total; empty: one each. A voter of weight 0 is absent; its ballot is not
  // read and may be nullptr. Without any votes all signs are ties.
  std::span<const uint32_t> weights = {};
  Ties ties = Ties::kHash;
  uint64_t seed = 0, step = 0;          // for kHash
  uint64_t offset = 0;                  // for kHash: index of sign 0 in the whole, of which this may be a part
  const std::byte* previous = nullptr;  // for kPrevious: laid out as a ballot; may be the result
  Options options = {};                 // order: of ballots, result and zeros alike
};

// Finds the weighted majority. result: [packed_bytes(count)]; may be one of the ballots, but otherwise shares no byte
// with any. zeros: for kZero, laid out like the result and separate from everything else, gets a 1 for each tie; empty
// for other rules.
LT_API void majority(const Vote& vote, std::span<std::byte> result, std::span<std::byte> zeros = {});

}  // namespace lowtide::sign
