// Conversions of each codec, the search for gradients that are not finite, and fills.
#include "backend/cuda/device/prelude.inc"
#include "backend/cuda/device/tiles-inl.h"
#include "backend/cuda/device/nonfinite-inl.h"
#include "backend/kernels/aux-inl.h"
#include "backend/kernels/fill-inl.h"

template <class C, bool kSigned>
__global__ void __launch_bounds__(cuda_kernels::kThreads)
    decode_kernel(const DeviceItem* item, i64 blocks, const void* tables) {
  decode_blocks<C, kSigned>(item, blocks, tables);
}

template <class C, bool kSigned>
__global__ void __launch_bounds__(cuda_kernels::kThreads)
    encode_kernel(const DeviceItem* item, i64 blocks, const void* tables) {
  encode_blocks<C, kSigned>(item, blocks, tables);
}

static __global__ void __launch_bounds__(cuda_kernels::kThreads, 3)
    first_nonfinite_kernel(const DeviceItem* items, const i64* starts, i64 count, i64 tiles, u32* first) {
  find_nonfinite_in_tiles(items, starts, count, tiles, first);
}

static __global__ void __launch_bounds__(cuda_kernels::kThreads) fill_kernel(u8* to, u32 word, i64 bytes) {
  fill_bytes(to, word, bytes);
}

}  // namespace lowtide::LT_CUDA_NAMESPACE

namespace lowtide::cuda_kernels {
using namespace cuda_device;

// A thread block takes one block at a time.
cudaError_t decode(int codec, bool is_signed, const kernels::DeviceItem* item, int64_t blocks, const void* tables,
                   const Queue& queue) {
  switch (codec) {
#define LT_CODEC(number, name, C)                                                                   \
  case number:                                                                                      \
    return is_signed ? queue_kernel(decode_kernel<C, true>, blocks, 1, queue, item, blocks, tables) \
                     : queue_kernel(decode_kernel<C, false>, blocks, 1, queue, item, blocks, tables);
#include "portable/codecs.def"
#undef LT_CODEC
  }
  return cudaErrorInvalidValue;
}

cudaError_t encode(int codec, bool is_signed, const kernels::DeviceItem* item, int64_t blocks, const void* tables,
                   const Queue& queue) {
  switch (codec) {
#define LT_CODEC(number, name, C)                                                                   \
  case number:                                                                                      \
    return is_signed ? queue_kernel(encode_kernel<C, true>, blocks, 1, queue, item, blocks, tables) \
                     : queue_kernel(encode_kernel<C, false>, blocks, 1, queue, item, blocks, tables);
#include "portable/codecs.def"
#undef LT_CODEC
  }
  return cudaErrorInvalidValue;
}

cudaError_t first_nonfinite(const kernels::DeviceItem* items, const int64_t* starts, int64_t count, int64_t tiles,
                            uint32_t* first, const Queue& queue) {
  return queue_kernel(first_nonfinite_kernel, tiles, kWarps, queue, items, reinterpret_cast<const i64*>(starts), count,
                      tiles, first);
}

cudaError_t fill(unsigned char* to, uint32_t word, int64_t bytes, const Queue& queue) {
  if (bytes <= 0) return cudaSuccess;
  return queue_kernel(fill_kernel, bytes / 4 + 1, kThreads, queue, to, word, bytes);
}

}  // namespace lowtide::cuda_kernels
