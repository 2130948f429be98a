// Signs of values as bits, and majorities of them: 32 times smaller than float32, 16 times smaller than bfloat16. In
// host memory or, with Options::queue, on a device.
//
// A sign is one bit: 1 for +, which means x >= 0. Both zeros are +; a NaN of either sign is -. Bits after the last sign
// in its byte are 0. All computation uses integers: results are the same on every machine, for any number of threads.
//
// Threads: any, concurrently; one at a time uses a Queue. Memory is the caller's, borrowed for the call or, on a
// device, until the work that the call queued is done. Errors: Error (kInvalidArgument), which says what the call got
// and wanted, and std::bad_alloc; a call that throws has written and queued nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "lowtide/error.h"
#include "lowtide/export.h"
#include "lowtide/tensor.h"

namespace lowtide {
class Backend;
}

namespace lowtide::sign {

// The position of sign i in byte i / 8. Part of the C ABI: never renumber.
enum class BitOrder : int32_t {
  kLittle = 0,  // bit i % 8, like numpy's bitorder="little"
  kBig = 1,     // bit 7 - i % 8, like numpy's default
};

// A queue of a device, on which signs in memory of that device are packed, unpacked and counted, in order, without
// waiting. Opening one takes long: keep it. Copies refer to the same queue.
class LT_API Queue {
 public:
  // backend: "sycl" or "cuda". native: a sycl::queue* or cudaStream_t, which must outlive this; nullptr: makes one, in
  // the context of all optimizers and devices that were given no queue. device: as in OptimizerOptions; only read
  // without `native`. Throws Error: kUnsupported if there is no such device here.
  explicit Queue(const std::string& backend, void* native = nullptr, const std::string& device = {});
  // The sycl::queue* or cudaStream_t. A queue made here lives as long as the last copy of this Queue.
  void* native() const { return native_; }
  // Waits for all work queued there so far. Throws Error if some of it failed.
  void synchronize() const;
  Backend& backend() const { return *backend_; }  // the library's own

 private:
  std::shared_ptr<Backend> backend_;
  void* native_;
};

// The sign that wins if + and - have equally many votes. Part of the C ABI: never renumber.
enum class Ties : int32_t {
  kHash = 0,  // a fair bit hashed from seed, step and the sign's index in the whole; the same on every machine
  kPlus = 1,
  kMinus = 2,
  kZero = 3,      // the sign -, marked in `zeros`
  kPrevious = 4,  // the sign in an earlier result
};

// Bytes that hold `count` signs, 0 to 2^60 of them.
constexpr int64_t packed_bytes(int64_t count) { return (count + 7) / 8; }

// The largest number of voters in a majority.
inline constexpr int64_t kMostBallots = 65535;

struct Options {
  BitOrder order = BitOrder::kLittle;
  int threads = 0;  // the caller included; 0: one per core that this process may run on; ignored on devices
  // nullptr: arrays of values and bits are in host memory. Else they are in memory that its device can address.
  const Queue* queue = nullptr;
};

// Packs the signs of values[count], contiguous and aligned to an element. bits: [packed_bytes(count)], of any
// alignment, sharing no byte with values.
LT_API void pack(DType dtype, const void* values, int64_t count, std::span<std::byte> bits,
                 const Options& options = {});

// Unpacks to +1 and -1, and to 0 where `zeros` has a 1. bits: [packed_bytes(count)]. values: [count], contiguous and
// aligned to an element, sharing no byte with the others. zeros: empty, or laid out like bits.
LT_API void unpack(std::span<const std::byte> bits, DType dtype, void* values, int64_t count,
                   std::span<const std::byte> zeros = {}, const Options& options = {});

// The arguments of a majority.
struct Vote {
  int64_t count = 0;  // signs
  // 1 to 65,535 voters: [packed_bytes(count)] each, any alignment. The span and the weights are in host memory and
  // borrowed for the call, even if the ballots are on a device.
  std::span<const std::byte* const> ballots;
  // Votes of each voter, less than 2^31 in total; empty: one each. A voter of weight 0 is absent; its ballot is not
  // read and may be nullptr. Without any votes all signs are ties.
  std::span<const uint32_t> weights = {};
  Ties ties = Ties::kHash;
  uint64_t seed = 0, step = 0;          // for kHash
  uint64_t offset = 0;                  // for kHash: index of sign 0 in the whole, of which this may be a part
  const std::byte* previous = nullptr;  // for kPrevious: laid out like a ballot; may be the result
  Options options = {};                 // its order applies to ballots, result and zeros
};

// Finds the weighted majority. result: [packed_bytes(count)]; may be one of the ballots, but otherwise shares no byte
// with any. zeros: for kZero, laid out like the result and separate from everything else, gets a 1 for each tie; empty
// for other rules.
LT_API void majority(const Vote& vote, std::span<std::byte> result, std::span<std::byte> zeros = {});

}  // namespace lowtide::sign
