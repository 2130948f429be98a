// Plain data that host code shares with device kernels (SYCL, CUDA), for all compilers.
#pragma once

#include <cstdint>

#include "backend/limits.h"
#include "backend/norms.h"

namespace lowtide::kernels {

// A strided tensor in memory that the device can address.
struct DeviceTensor {
  void* data;
  const int64_t* dims;  // [dim_count][2]: size, stride in elements, outermost first; unused if dim_count is 0
  int32_t dim_count;    // 0: contiguous
  int32_t dtype;        // a DType
};

// The signs of a parameter, from index `first` on. Steps that make signs write bits and presence; steps by signs read
// all.
struct DeviceSigns {
  unsigned char *bits, *presence;  // presence may be nullptr
  const unsigned char* zeros;      // or nullptr
  int64_t first;
  uint32_t zero_is_plus;
};

// The MasterWeights of an item.
struct DeviceMaster {
  void* residual;
  int32_t kind;  // 0: no master
  uint32_t key[2];
};

// A StepItem; a CodecItem as a float32 item (param: the values); or an ApplyItem, whose elements form one row.
struct DeviceItem {
  DeviceTensor param, grad;
  DeviceSigns signs;
  DeviceMaster master;
  int64_t row_length;
  int64_t first_block;  // codes, scales and the residual begin at it
  int64_t blocks;       // the item's number of blocks
  int64_t origin;       // number of elements before first_block
  void* codes[kMaxStates];
  float* scales[kMaxStates];
  float grad_scale;
  uint32_t limit_bits;  // magnitudes of gradients must be below this, as float bits
  uint32_t index;       // index among the caller's items
  uint32_t stochastic;  // bit k: state k is rounded stochastically with key[k]
  uint32_t key[kMaxStates][2];
  int64_t first_index, row_stride;  // from ShardOrigin: index of the first row's first element; distance between rows
  int64_t write_offset;   // offset in bytes from where codes, scales and residual are read to where they are written
  const uint32_t* guard;  // if not nullptr, the item is touched only while *guard is kNoItem
  alignas(8) unsigned char args[kArgsBytes];  // the rule's Args
};

// "No item", in results that name an item.
inline constexpr uint32_t kNoItem = ~uint32_t{0};

// The args of a DeviceItem made from an ApplyItem.
struct ApplyArgs {
  float lr, decay;
};

// A VoteItem or a CountItem. Separate arrays hold the ballots, the weights, and the presences or the counters' planes.
struct DeviceVote {
  int64_t count;
  uint64_t first_index, seed, step;
  const unsigned char* previous;
  unsigned char *result, *zeros;
  unsigned char* result_presence;  // nullptr: all ballots are present
  uint32_t sum;                    // sum of the weights
  int32_t planes, voters, ties;    // ties: a Tie; planes: as many as hold the sum, or a CountItem's own number
  uint32_t big;
};

// The part of a SignItem that sign kernels read.
struct DeviceSignItem {
  void* values;
  unsigned char *bits, *presence;
  const unsigned char* zeros;
  const uint16_t* scales;
  uint32_t* nonfinite;
  int64_t first, count;
  uint32_t zero_is_plus, big;
};

// A FeedbackItem. Separate arrays hold the ballots, their scales, and the weights.
struct DeviceFeedback {
  DeviceTensor values;  // data is nullptr if the input is ballots
  int64_t first, count;
  float value_scale;
  uint32_t sum;  // sum of the weights
  int32_t voters, codec;
  void* codes;  // nullptr: no residual
  float* scales;
  unsigned char* bits;
  uint16_t* bit_scales;
};

// Work-items in a group, one for each element of a block.
inline constexpr int kGroupSize = kBlockElements;

// Words of 32 signs per presence bit, and words that a sub-group packs at a time, per presence byte.
inline constexpr int kWordsOfBlock = 2, kSignWordsAtOnce = 8 * kWordsOfBlock;

// Work-items per block of error feedback: the lanes of its sum.
inline constexpr int kFeedbackLanes = 16;

}  // namespace lowtide::kernels
