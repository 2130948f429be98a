// The CUDA kernels for host code: one function queues each kind of kernel. Pointers must be addressable by the device.
// The functions are in the .cu files, return the result of the launch, and launch nothing if there is no work.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

#include "backend/kernels/clip.h"
#include "backend/kernels/items.h"
#include "backend/kernels/sums.h"
#include "lowtide/tensor.h"

namespace lowtide::cuda_kernels {

// The stream on which kernels are queued, and its device's multiprocessors.
struct Queue {
  cudaStream_t stream;
  int processors;
  int device;  // the device's ordinal
};

// Returns how many thread blocks of the kernel a multiprocessor of the queue's device holds at a time, or 0 if CUDA has
// not been asked yet. May be called by any thread.
std::atomic<int>& resident_of(const void* kernel, const Queue& queue);

// The number of blocks in a tile, which is a warp's unit of work in a step. Items' starts are counted in tiles.
inline constexpr int64_t kTileBlocks = 32;

// A recorded step reads this first; replays whose number has not increased do nothing.
struct ReplayState {
  uint32_t prepared;  // number that the host has set for the next replay
  uint32_t done;      // number of the last replay that ran
  uint32_t missed;    // count of replays that found nothing prepared
};

struct StepLaunch {
  int rule = 0, codec = 0;
  bool fast = false;    // approximate arithmetic if such a kernel exists; otherwise the CPU backend's bits
  bool ballot = false;  // makes signs instead of changing parameters
  const kernels::DeviceItem* items = nullptr;
  const kernels::DeviceNorms* norms = nullptr;  // parallel to items, for an LT_NORM_RULE
  const int64_t* starts = nullptr;              // [count], tiles before each
  int64_t count = 0, tiles = 0;
  int64_t* taken = nullptr;             // a word for this launch alone, 0 when it begins
  const void* tables = nullptr;         // the codec's tables
  const ReplayState* replay = nullptr;  // of a recorded step
};
cudaError_t step(const StepLaunch& launch, const Queue& queue);
// The steps of each rule, which has a .cu file, and another for its fast steps, if any (step_rule.inc).
#define LT_RULE(number, name, R)                                         \
  cudaError_t step_##name(const StepLaunch& launch, const Queue& queue); \
  cudaError_t step_fast_##name(const StepLaunch& launch, const Queue& queue);
#include "portable/rules.def"
#undef LT_RULE

// Counts the replay. Queue this after the launches of a recorded step.
cudaError_t finish_replay(ReplayState* replay, const Queue& queue);

// For an LT_NORM_RULE, before its steps are queued: add to the sums of norms, and put norms into the items' arguments.
cudaError_t add_norms(const StepLaunch& launch, const Queue& queue);
cudaError_t put_norms(const StepLaunch& launch, const Queue& queue);

// `item` is a single item with `blocks` blocks.
cudaError_t decode(int codec, bool is_signed, const kernels::DeviceItem* item, int64_t blocks, const void* tables,
                   const Queue& queue);
cudaError_t encode(int codec, bool is_signed, const kernels::DeviceItem* item, int64_t blocks, const void* tables,
                   const Queue& queue);
// Lowers *first to the smallest index of an item with a non-finite gradient.
cudaError_t first_nonfinite(const kernels::DeviceItem* items, const int64_t* starts, int64_t count, int64_t tiles,
                            uint32_t* first, const Queue& queue);
// `word` contains a byte pattern four times. For other patterns, `to` must be aligned and `bytes` a multiple of 4.
cudaError_t fill(unsigned char* to, uint32_t word, int64_t bytes, const Queue& queue);

cudaError_t pack_signs(DType dtype, const kernels::DeviceSignItem& item, const Queue& queue);
cudaError_t unpack_signs(DType dtype, const kernels::DeviceSignItem& item, const Queue& queue);
// `signs` is vote->count. If the vote has presences, call vote_presence() next.
cudaError_t vote_signs(const kernels::DeviceVote* vote, const unsigned char* const* ballots, const uint32_t* weights,
                       const unsigned char* const* presences, int64_t signs, const Queue& queue);
cudaError_t vote_presence(const kernels::DeviceVote* vote, const uint32_t* weights,
                          const unsigned char* const* presences, int64_t signs, const Queue& queue);
cudaError_t count_signs(const kernels::DeviceVote* vote, const unsigned char* const* ballots, const uint32_t* weights,
                        unsigned char* const* planes, int64_t signs, const Queue& queue);
// `starts` are counted in blocks.
cudaError_t apply_signs(const kernels::DeviceItem* items, const int64_t* starts, int64_t count, int64_t blocks,
                        const Queue& queue);
cudaError_t feedback(const kernels::DeviceFeedback* item, const unsigned char* const* ballots,
                     const uint16_t* const* ballot_scales, const uint32_t* weights, const void* tables, int64_t signs,
                     const Queue& queue);

// Adds the squares of the items' gradients to the parts.
cudaError_t sum_squares(const kernels::DeviceItem* items, const int64_t* starts, int64_t count, int64_t tiles,
                        kernels::SumParts* parts, const Queue& queue);
cudaError_t merge_sums(const kernels::SumParts* parts, kernels::Sums* sums, const Queue& queue);

// Adds the terms of the items to kTermSums parts, for an LT_SUM_RULE.
cudaError_t sum_terms(int rule, int codec, const kernels::DeviceItem* items, const int64_t* starts, int64_t count,
                      int64_t tiles, const void* tables, kernels::SumParts* parts, const Queue& queue);

// For clips for which the host does not wait. Computes *clip and, if `norm` is not nullptr, stores the norm as float32.
cudaError_t clip(const kernels::Sums* sums, const kernels::ClipTo& to, kernels::Clip* clip, float* norm,
                 const Queue& queue);
// Sets *first to kNoItem, or to 0 if *scaling.found_inf is above 0. Divides the clip's factor, which is 1 unless
// measured, by the loss scale.
cudaError_t loss_scaling(const LossScaling& scaling, kernels::Clip* clip, bool is_measured, uint32_t* first,
                         const Queue& queue);
// Multiplies the gradient factors of the items by the clip's factor and by `scale`, rounding once.
cudaError_t scale_items(kernels::DeviceItem* items, int64_t count, const kernels::Clip* clip, double scale,
                        const Queue& queue);
// Does first_nonfinite() of the scaled items, unless the norm shows that all gradients are finite.
cudaError_t first_nonfinite_behind(const kernels::Clip* clip, double scale, const kernels::DeviceItem* items,
                                   const int64_t* starts, int64_t count, int64_t tiles, uint32_t* first,
                                   const Queue& queue);

// Returns true if this build has code that runs on the current device.
bool has_code();

}  // namespace lowtide::cuda_kernels
