// The vocabulary of kernels: qualifiers, vectors, a thread's position, and how threads meet. A block's threads are
// fibers of one thread of the host, one block at a time, and change only where they meet.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
// Nothing, since the standard library writes __attribute__((__noinline__)).
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
// One block runs at a time.
#define __shared__ static
#define __constant__ static

struct uint3 {
  unsigned int x, y, z;
};
struct dim3 {
  unsigned int x, y, z;
  constexpr dim3(unsigned int vx = 1, unsigned int vy = 1, unsigned int vz = 1) : x(vx), y(vy), z(vz) {}
};

#define LT_CUDA_VECTORS(type, name, align2, align4)                \
  struct alignas(align2) name##2 {                                 \
    type x, y;                                                     \
  };                                                               \
  struct alignas(align4) name##4 {                                 \
    type x, y, z, w;                                               \
  };                                                               \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; } \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
LT_CUDA_VECTORS(unsigned char, uchar, 2, 4)
LT_CUDA_VECTORS(signed char, char, 2, 4)
LT_CUDA_VECTORS(unsigned short, ushort, 4, 8)
LT_CUDA_VECTORS(short, short, 4, 8)
LT_CUDA_VECTORS(unsigned int, uint, 8, 16)
LT_CUDA_VECTORS(int, int, 8, 16)
LT_CUDA_VECTORS(float, float, 8, 16)
#undef LT_CUDA_VECTORS
struct alignas(16) ulonglong2 {
  unsigned long long x, y;
};
struct alignas(16) longlong2 {
  long long x, y;
};
struct alignas(16) double2 {
  double x, y;
};

#define LT_CUDA_HOOK extern __attribute__((visibility("default")))

// The position of the running thread.
LT_CUDA_HOOK uint3 threadIdx, blockIdx;
LT_CUDA_HOOK dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace cuda_emulator {

enum class Meeting { kShuffle, kBallot, kWarp };
// Meets the lanes of `mask` of the caller's warp. kShuffle: the value of lane `source`. kBallot: the lanes whose value
// is not 0. A launch fails with the reason if lanes never come, or if the mask lacks the caller or the source.
LT_CUDA_HOOK uint64_t meet(Meeting kind, unsigned int mask, uint64_t value, unsigned int source);
LT_CUDA_HOOK void meet_block();
// Fails the launch.
[[noreturn]] LT_CUDA_HOOK void fail_launch(const char* reason);

inline unsigned int lane() { return threadIdx.x % warpSize; }

template <class T>
T shuffle(unsigned int mask, T value, unsigned int source) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  uint64_t raw = 0;
  std::memcpy(&raw, &value, sizeof value);
  raw = meet(Meeting::kShuffle, mask, raw, source);
  std::memcpy(&value, &raw, sizeof value);
  return value;
}

// CUDA C++ Programming Guide, "Warp Shuffle Functions": a width that is no power of two, or more than a warp, has no
// defined result.
inline unsigned int shuffle_width(int width) {
  if (width < 1 || width > warpSize || (width & (width - 1))) {
    std::fprintf(stderr, "a shuffle: got the width %d, wanted a power of two up to %d\n", width, warpSize);
    std::abort();
  }
  return static_cast<unsigned int>(width);
}

// Memory that is read and written whole must be aligned to its size.
template <class T>
T* aligned(T* memory) {
  if (reinterpret_cast<uintptr_t>(memory) % sizeof(T)) fail_launch("misaligned address of a load or store");
  return memory;
}

}  // namespace cuda_emulator

inline void __syncthreads() { cuda_emulator::meet_block(); }
inline void __syncwarp(unsigned int mask = 0xffffffffu) {
  cuda_emulator::meet(cuda_emulator::Meeting::kWarp, mask, 0, 0);
}
inline unsigned int __ballot_sync(unsigned int mask, int predicate) {
  return static_cast<unsigned int>(cuda_emulator::meet(cuda_emulator::Meeting::kBallot, mask, predicate != 0, 0));
}
inline int __any_sync(unsigned int mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
template <class T>
T __shfl_sync(unsigned int mask, T value, int source, int width = warpSize) {
  const unsigned int w = cuda_emulator::shuffle_width(width), first = cuda_emulator::lane() & ~(w - 1);
  return cuda_emulator::shuffle(mask, value, first + (static_cast<unsigned int>(source) & (w - 1)));
}
template <class T>
T __shfl_xor_sync(unsigned int mask, T value, int lanes, int width = warpSize) {
  const unsigned int lane = cuda_emulator::lane(), source = lane ^ static_cast<unsigned int>(lanes);
  const unsigned int w = cuda_emulator::shuffle_width(width);
  return cuda_emulator::shuffle(mask, value, source < (lane & ~(w - 1)) + w ? source : lane);
}
template <class T>
T __shfl_down_sync(unsigned int mask, T value, unsigned int delta, int width = warpSize) {
  const unsigned int lane = cuda_emulator::lane(), w = cuda_emulator::shuffle_width(width);
  return cuda_emulator::shuffle(mask, value, (lane & (w - 1)) + delta < w ? lane + delta : lane);
}

inline unsigned int atomicOr(unsigned int* at, unsigned int value) {
  const unsigned int old = *cuda_emulator::aligned(at);
  *at = old | value;
  return old;
}
inline unsigned int atomicMin(unsigned int* at, unsigned int value) {
  const unsigned int old = *cuda_emulator::aligned(at);
  *at = value < old ? value : old;
  return old;
}
template <class T>
  requires std::is_same_v<T, unsigned int> || std::is_same_v<T, unsigned long long>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  const T old = *cuda_emulator::aligned(at);
  *at = old + value;
  return old;
}

template <class T>
T __ldg(const T* at) {
  return *cuda_emulator::aligned(at);
}
template <class T>
T __ldcs(const T* at) {
  return *cuda_emulator::aligned(at);
}
template <class T>
void __stcs(T* at, T value) {
  *cuda_emulator::aligned(at) = value;
}

inline int __popc(unsigned int x) { return std::popcount(x); }
// As CUDA's header says: three bits of the selector pick each byte. PTX's prmt takes the fourth to repeat the byte's
// sign, which the compiler of CUDA removes: who passes it here means something that a GPU does not do.
inline unsigned int __byte_perm(unsigned int x, unsigned int y, unsigned int selector) {
  if (selector & ~0x7777u) {
    std::fprintf(stderr, "__byte_perm: got the selector 0x%x, wanted digits of 0 to 7\n", selector);
    std::abort();
  }
  const uint64_t both = uint64_t{y} << 32 | x;
  unsigned int out = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned int byte = selector >> (4 * i) & 7;
    out |= (static_cast<unsigned int>(both >> 8 * byte) & 255) << 8 * i;
  }
  return out;
}
inline unsigned int __float_as_uint(float x) { return std::bit_cast<unsigned int>(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
// CUDA C++ Programming Guide, "Intrinsic Functions": 0 for divisors between 2^126 and 2^128, and a NaN for infinity by
// these.
inline float __fdividef(float a, float b) { return std::fabs(b) > 0x1p126f && std::isfinite(b) ? a * 0.f : a / b; }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.f) : 0.f; }
