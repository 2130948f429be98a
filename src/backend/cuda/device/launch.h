// The CUDA kernels for host code: one function queues each kind of kernel. Pointers must be addressable by the device.
// The functions are in the .cu files, return the result of the launch, and launch nothing if there is no work.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

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

// Returns true if this build has code that runs on the current device.
bool has_code();

}  // namespace lowtide::cuda_kernels
