// Gradients of several micro-batches as counts of their signs: ceil(log2(k + 1)) bits an element for k micro-batches,
// where a float32 sum takes 32 (k = 15: an eighth).
//
// Counts are not the sum: magnitudes are gone. The majority of k signs estimates the sign of the mean gradient; for
// normal noise much larger than the gradient its efficiency is 2 / pi, so it needs 1.57 times as many micro-batches for
// the same certainty.
//
// Threads: one accumulator is used by one thread at a time; it uses the process's thread pool. Values and results are
// in host memory and borrowed for the call. Errors: Error (kInvalidArgument), std::bad_alloc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "lowtide/export.h"
#include "lowtide/tensor.h"

namespace lowtide {

// Owns its counters: planes of bits, all allocated by the constructor.
class LT_API SignAccumulator {
 public:
  // For up to `most` (1 to 65,535) additions of `count` (0 to 2^60) values. threads: 0 = one per core.
  SignAccumulator(int64_t count, int most, int threads = 0);
  ~SignAccumulator();
  SignAccumulator(SignAccumulator&&) noexcept;
  SignAccumulator& operator=(SignAccumulator&&) noexcept;

  // Adds the signs of values[count], contiguous: + is x >= 0. Exact zeros are + in one addition and - in the next,
  // also across reset(), so that they favor no sign. Returns false if a value is NaN or infinite; it was counted (a NaN
  // as -), and the caller decides. Throws kInvalidArgument if there are `most` additions already.
  bool add(const void* values, DType dtype);
  // Forgets all additions; keeps the memory.
  void reset();

  int64_t count() const;
  int added() const;  // additions since reset()
  int most() const;
  int64_t bytes() const;  // size of the counters

  // Writes the sign that most additions had to bits[(count + 7) / 8], as lowtide/sign.h lays them out. ties, seed and
  // step are as there, but "zero" and "previous" are refused: they need more room.
  void majority(std::byte* bits, const std::string& ties = "hash", uint64_t seed = 0, uint64_t step = 0) const;
  // Writes (number of + minus number of -) / added to float32 out[count]; 0 if nothing was added.
  void mean(float* out) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lowtide
