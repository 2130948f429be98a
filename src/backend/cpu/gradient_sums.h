// Norms of gradients from a single read: the exact sum of squares, and the largest magnitude. Neither depends on the
// instruction set, the threads, or how gradients are cut into pieces and shards.
#pragma once

#include <cstdint>
#include <span>

#include "core/exact_sum.h"
#include "core/layout.h"
#include "lowtide/tensor.h"

namespace lowtide::cpu {

struct GradientView {
  const void* data = nullptr;
  const Layout* layout = nullptr;
  DType dtype = DType::kF32;
};

struct GradientSums {
  // Meaningful only if all elements are finite, as `largest` tells: chunks with other elements are left out.
  ExactSum squares;
  // The largest magnitude as float bits; above infinity's bits if there is a NaN.
  uint32_t largest = 0;

  void merge(const GradientSums& other) {
    squares.merge(other.squares);
    if (largest < other.largest) largest = other.largest;
  }
};

// A thread's sums. Every magnitude of the last run was below 2^top, so the next run tries `top` first.
struct alignas(64) SumsRun {
  GradientSums sums;
  int top = 0;
};
// Adds n contiguous gradients.
using SumsKernel = void (*)(const void* grad, int64_t n, SumsRun& run);
struct SumsKernels {
  SumsKernel of[3];  // by DType
};
// target: one Highway target bit.
SumsKernels pick_sums(int64_t target);

// target: a name from the CPU backend's targets().
GradientSums gradient_sums(std::span<const GradientView> gradients, int threads, const char* target);

}  // namespace lowtide::cpu
