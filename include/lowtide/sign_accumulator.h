// Gradients of several micro-batches as counts of their signs: ceil(log2(k + 1)) bits an element for k of them, where a
// float32 sum takes 32 (k = 15: an eighth).
//
// What it is not: the sum. Magnitudes are gone; the majority of k signs is an estimate of the sign of the mean gradient
// whose efficiency, for normal noise much larger than the gradient, is 2 / pi: it needs 1.57 times as many
// micro-batches for the same certainty. (A running XOR of signs, by contrast, is their parity, which after a few says
// nothing at all.)
//
// Threads: one accumulator is used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "lowtide/export.h"
#include "lowtide/tensor.h"

namespace lowtide {

class LT_API SignAccumulator {
 public:
  // For up to `most` (1 to 65,535) additions of `count` values. threads: 0 = one per core. Throws kInvalidArgument,
  // std::bad_alloc.
  SignAccumulator(int64_t count, int most, int threads = 0);
  ~SignAccumulator();
  SignAccumulator(SignAccumulator&&) noexcept;
  SignAccumulator& operator=(SignAccumulator&&) noexcept;

  // values: [count], contiguous. + is x >= 0; exact zeros are + in one addition and - in the next, reset() or not.
  // False if a value is NaN or infinite: it was counted (as its sign, a NaN as -), and the caller decides. Throws
  // kInvalidArgument when `most` are there.
  bool add(const void* values, DType dtype);
  void reset();

  int64_t count() const;
  int added() const;
  int most() const;
  int64_t bytes() const;  // of counters

  // The sign that most additions had: bits as lowtide/sign.h has them, [(count + 7) / 8]. ties, seed, step: as there,
  // but "zero" and "previous", which need more room.
  void majority(std::byte* bits, const std::string& ties = "hash", uint64_t seed = 0, uint64_t step = 0) const;
  // (number of + minus number of -) / added, [count] float32; 0 where nothing was added.
  void mean(float* out) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lowtide
