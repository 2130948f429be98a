// Packs and unpacks signs, votes, steps by signs, and does error feedback.
#include "backend/cuda/device/prelude.inc"
#include "portable/sign.h"
#include "portable/feedback.h"
#include "backend/kernels/words-inl.h"
#include "backend/kernels/sign-inl.h"
#include "backend/kernels/vote-inl.h"
#include "backend/kernels/apply-inl.h"
#include "backend/kernels/feedback-inl.h"

template <class T>
__global__ void __launch_bounds__(cuda_kernels::kThreads, 4) pack_kernel(const __grid_constant__ DeviceSignItem item) {
  pack<T>(item);
}
template <class T>
__global__ void __launch_bounds__(cuda_kernels::kThreads, 4)
    unpack_kernel(const __grid_constant__ DeviceSignItem item) {
  unpack<T>(item);
}

static __global__ void __launch_bounds__(cuda_kernels::kThreads, 4)
    vote_kernel(const DeviceVote* vote, Rows ballots, const u32* weights, Rows presences) {
  vote_words(vote, ballots, weights, presences);
}
static __global__ void __launch_bounds__(cuda_kernels::kThreads, 4)
    vote_presence_kernel(const DeviceVote* vote, const u32* weights, Rows presences) {
  vote_presence_bytes(vote, weights, presences);
}
static __global__ void __launch_bounds__(cuda_kernels::kThreads, 4)
    count_kernel(const DeviceVote* vote, Rows ballots, const u32* weights, u8* const* planes) {
  count_words(vote, ballots, weights, planes);
}
static __global__ void __launch_bounds__(cuda_kernels::kThreads, 4)
    apply_kernel(const DeviceItem* items, const i64* starts, i64 count, i64 blocks) {
  apply_blocks(items, starts, count, blocks);
}
static __global__ void __launch_bounds__(cuda_kernels::kThreads, 4)
    feedback_kernel(const DeviceFeedback* item, Rows ballots, const u16* const* ballot_scales, const u32* weights,
                    const void* tables) {
  feedback_blocks(item, ballots, ballot_scales, weights, tables);
}

}  // namespace lowtide::LT_CUDA_NAMESPACE

namespace lowtide::cuda_kernels {
using namespace cuda_device;
namespace {

// Returns the number of words of 32 signs for this many signs; each word takes a thread.
int64_t words_of(int64_t signs) { return ceil_div(signs, 32); }

// Calls work(T()) with the element type of this number.
template <class Fn>
cudaError_t with_type(DType dtype, Fn&& work) {
  switch (dtype) {
    case DType::kF32:
      return work(float());
    case DType::kBF16:
      return work(bf16());
    case DType::kF16:
      return work(f16());
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t pack_signs(DType dtype, const kernels::DeviceSignItem& item, const Queue& queue) {
  if (item.count <= 0) return cudaSuccess;
  constexpr int64_t kAtOnceByWarp = 32 * kernels::kSignWordsAtOnce;
  const int64_t units = ceil_div(item.first + item.count, kAtOnceByWarp) - item.first / kAtOnceByWarp;
  return with_type(dtype, [&]<class T>(T) { return queue_kernel(pack_kernel<T>, units, kWarps, queue, item); });
}

cudaError_t unpack_signs(DType dtype, const kernels::DeviceSignItem& item, const Queue& queue) {
  if (item.count <= 0) return cudaSuccess;
  const int64_t words = words_of(item.first + item.count) - item.first / 32;
  return with_type(dtype, [&]<class T>(T) { return queue_kernel(unpack_kernel<T>, words, kWarps, queue, item); });
}

cudaError_t vote_signs(const kernels::DeviceVote* vote, const unsigned char* const* ballots, const uint32_t* weights,
                       const unsigned char* const* presences, int64_t signs, const Queue& queue) {
  return queue_kernel(vote_kernel, words_of(signs), kThreads, queue, vote, ballots, weights, presences);
}

cudaError_t vote_presence(const kernels::DeviceVote* vote, const uint32_t* weights,
                          const unsigned char* const* presences, int64_t signs, const Queue& queue) {
  const int64_t bytes = ceil_div(signs, 8 * 32 * kernels::kWordsOfBlock);
  return queue_kernel(vote_presence_kernel, bytes, kThreads, queue, vote, weights, presences);
}

cudaError_t count_signs(const kernels::DeviceVote* vote, const unsigned char* const* ballots, const uint32_t* weights,
                        unsigned char* const* planes, int64_t signs, const Queue& queue) {
  return queue_kernel(count_kernel, words_of(signs), kThreads, queue, vote, ballots, weights, planes);
}

cudaError_t apply_signs(const kernels::DeviceItem* items, const int64_t* starts, int64_t count, int64_t blocks,
                        const Queue& queue) {
  return queue_kernel(apply_kernel, blocks, 1, queue, items, reinterpret_cast<const i64*>(starts), count, blocks);
}

cudaError_t feedback(const kernels::DeviceFeedback* item, const unsigned char* const* ballots,
                     const uint16_t* const* ballot_scales, const uint32_t* weights, const void* tables, int64_t signs,
                     const Queue& queue) {
  const int64_t blocks = ceil_div(signs, kFeedbackBlock);
  return queue_kernel(feedback_kernel, blocks * kernels::kFeedbackLanes, kThreads, queue, item, ballots, ballot_scales,
                      weights, tables);
}

}  // namespace lowtide::cuda_kernels
