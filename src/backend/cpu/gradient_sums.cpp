#include "backend/cpu/gradient_sums.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/pieces.h"

namespace lowtide::cpu {
namespace {

// The number of elements that a thread takes at a time: 256 KiB of floats, 10 us.
constexpr int64_t kAtOnce = 64 * 1024;
// The number of elements of a strided gradient that are gathered at a time.
constexpr int64_t kGathered = 4096;

void add(const GradientView& gradient, int64_t first, int64_t count, SumsKernel kernel, SumsRun& run) {
  const int64_t bytes = dtype_bytes(gradient.dtype);
  if (gradient.layout->contiguous) {
    kernel(static_cast<const std::byte*>(gradient.data) + first * bytes, count, run);
    return;
  }
  alignas(64) std::byte packed[kGathered * sizeof(float)];
  for (const int64_t end = first + count; first < end; first += kGathered) {
    const int64_t here = std::min(kGathered, end - first);
    gradient.layout->gather(gradient.data, bytes, first, here, packed);
    kernel(packed, here, run);
  }
}

}  // namespace

GradientSums gradient_sums(std::span<const GradientView> gradients, int threads, const char* target) {
  const SumsKernels kernels = pick_sums(target_bit(target));
  std::vector<int64_t> starts;
  starts.reserve(gradients.size() + 1);
  int64_t total = 0;
  for (const GradientView& gradient : gradients) {
    starts.push_back(total);
    total += gradient.layout->numel;
  }
  starts.push_back(total);
  const int64_t pieces = (total + kAtOnce - 1) / kAtOnce;
  std::vector<SumsRun> runs(static_cast<size_t>(std::clamp<int64_t>(pieces, 1, std::max(threads, 1))));
  for_ranges(pieces, static_cast<int>(runs.size()), [&](int worker, int64_t piece) {
    int64_t at = piece * kAtOnce;
    const int64_t end = std::min(total, at + kAtOnce);
    auto i = static_cast<size_t>(std::upper_bound(starts.begin(), starts.end(), at) - starts.begin()) - 1;
    for (; at < end; ++i) {
      const int64_t stop = std::min(end, starts[i + 1]);
      const GradientView& gradient = gradients[i];
      SumsRun& run = runs[static_cast<size_t>(worker)];
      if (stop > at) add(gradient, at - starts[i], stop - at, kernels.of[static_cast<int>(gradient.dtype)], run);
      at = stop;
    }
    return true;
  });
  GradientSums all;
  for (const SumsRun& run : runs) all.merge(run.sums);
  return all;
}

}  // namespace lowtide::cpu
