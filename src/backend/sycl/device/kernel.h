// What crosses the border between host code and the SYCL kernels: plain data, for both compilers.
#pragma once

#include <cstdint>

#include "backend/limits.h"

namespace lowtide::sycl_device {

// A strided tensor in memory that the device can address.
struct DeviceTensor {
  void* data;
  const int64_t* dims;  // [dim_count][2]: size, stride in elements, outermost first; unused if dim_count is 0
  int32_t dim_count;    // 0: contiguous
  int32_t dtype;        // a DType
};

// A StepItem, or a CodecItem as one of float32 (param: the values).
struct DeviceItem {
  DeviceTensor param, grad;
  int64_t row_length;
  int64_t first_block;  // codes and scales begin with its
  int64_t origin;       // elements before first_block
  void* codes[kMaxStates];
  float* scales[kMaxStates];
  float grad_scale;
  uint32_t limit_bits;  // magnitudes of gradients, as float bits, must be below it
  uint32_t index;       // position among the caller's items
  uint32_t stochastic;  // bit k: state k is rounded stochastically with key[k]
  uint32_t key[kMaxStates][2];
  alignas(8) unsigned char args[kArgsBytes];  // the rule's Args
};

// A VoteItem. Ballots and weights are arrays beside it.
struct DeviceVote {
  int64_t count;
  uint64_t first_index, seed, step;
  const unsigned char* previous;
  unsigned char *result, *zeros;
  uint32_t sum;                  // of the weights
  int32_t planes, voters, ties;  // ties: a Tie; planes hold the sum
};

// Work-items of a group: one for each element of a block.
inline constexpr int kGroupSize = kBlockElements;

// Words of 32 signs that a sub-group packs at a time.
inline constexpr int kSignWordsAtOnce = 8;

}  // namespace lowtide::sycl_device
