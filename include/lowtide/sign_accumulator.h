// Gradients of several micro-batches as counts of their signs: ceil(log2(k + 1)) bits per element for k micro-batches,
// while a float32 sum takes 32 (k = 15: an eighth).
//
// Counts are not the sum: magnitudes are lost. The majority of k signs estimates the sign of the mean gradient; for
// normal noise much larger than the gradient its efficiency is 2 / pi, so the same certainty takes 1.57 times as many
// micro-batches.
//
// Threads: one thread at a time uses an accumulator, on the process's thread pool. Values and results are in host
// memory and borrowed for the call. Errors: Error (kInvalidArgument), std::bad_alloc.
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

  // Adds the signs of values[count], contiguous: + is x >= 0. Exact zeros alternate between + and - from one addition
  // to the next, also across reset(), so that they favor neither sign. Returns false if a value is NaN or infinite; it
  // is counted nevertheless (a NaN as -), and the caller decides. Throws kInvalidArgument after `most` additions.
  bool add(const void* values, DType dtype);
  // Forgets all additions; keeps the memory.
  void reset();

  int64_t count() const;
  int added() const;  // additions since reset()
  int most() const;
  int64_t bytes() const;  // size of the counters

  // Writes the majority sign of the additions to bits[(count + 7) / 8], laid out as in lowtide/sign.h. ties, seed and
  // step mean the same as there, but "zero" and "previous" are refused: they need more memory.
  void majority(std::byte* bits, const std::string& ties = "hash", uint64_t seed = 0, uint64_t step = 0) const;
  // Writes (number of + minus number of -) / added to float32 out[count]; 0 if nothing was added.
  void mean(float* out) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lowtide
