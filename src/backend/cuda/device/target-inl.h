// Provides what the kernels (backend/kernels) require of their target, here CUDA: a thread's identity and cooperation.
// Included in the namespace of a .cu file after the portable kernels. Launches are one-dimensional. Threads meet only
// in uniform code, all 32.

inline constexpr i64 kBlocksOfTile = cuda_kernels::kTileBlocks;
inline constexpr u32 kAllLanes = ~0u;

// Returns threadIdx.x, read again at each use, because the compiler would keep it and values derived from it in
// registers that a step's values need.
LT_FN u32 thread_again() {
#ifdef __CUDA_ARCH__
  u32 x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
#else
  return threadIdx.x;
#endif
}

LT_FN i64 group_id() { return blockIdx.x; }
LT_FN i64 group_count() { return gridDim.x; }
LT_FN u32 id_in_group() { return threadIdx.x; }
LT_FN i64 item_id() { return static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; }
LT_FN i64 item_count() { return static_cast<i64>(gridDim.x) * blockDim.x; }

// Compute capability 7.5 does not compute in bfloat16, so such weights are rare there, and have no code of their own.
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ < 800
inline constexpr bool kHasBf16 = false;
#else
inline constexpr bool kHasBf16 = true;
#endif

// Compute capability 8.0 brought an instruction for each of the next three; 7.5 and the tests' emulation do without. The
// bits are the same: the hardware also rounds to nearest even, including denormals. A NaN stays a NaN.
#if __CUDA_ARCH__ >= 800
LT_FN u32 bf16_pair(float low, float high) {
  u32 two;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
  return two;
}
LT_FN u32 f16_pair(float low, float high) {
  u32 two;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
  return two;
}
#else
LT_FN u32 bf16_pair(float low, float high) { return __byte_perm(bf16_round(low), bf16_round(high), 0x7632); }
LT_FN u32 f16_pair(float low, float high) { return f16_encode(low) | f16_encode(high) << 16; }
#endif

LT_FN u32 max_of_lanes(u32 x, u32 lanes) {
#if __CUDA_ARCH__ >= 800
  if (lanes == 32) return __reduce_max_sync(kAllLanes, x);
#endif
  for (u32 distance = lanes / 2; distance > 0; distance /= 2) {
    const u32 other = __shfl_xor_sync(kAllLanes, x, static_cast<int>(distance));
    x = x > other ? x : other;
  }
  return x;
}

// Returns the group's maximum to every thread. Also a barrier: earlier reads are complete.
LT_FN u32 max_of_group(u32 x) {
  __shared__ u32 of_warp[kGroupSize / 32];
  x = max_of_lanes(x, 32);
  __syncthreads();  // all threads have read the previous call's values
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  return max_of_lanes(of_warp[threadIdx.x % (kGroupSize / 32)], kGroupSize / 32);
}

// After this call, the group can read what its members wrote before it.
LT_FN void meet_in_group() { __syncthreads(); }

// Returns the previous value.
LT_FN u32 atomic_add(u32* word, u32 x) { return atomicAdd(word, x); }
LT_FN void atomic_or(u32* word, u32 x) { atomicOr(word, x); }
LT_FN void atomic_min(u32* word, u32 x) {
  if (x < *static_cast<volatile u32*>(word)) atomicMin(word, x);
}

// Members are 32 consecutive work-items of a group, whose ballot is a word of 32 signs; here warps. This is a
// work-item's position: `lane` of the members `mine` of `all`.
struct Member {
  u32 lane;
  i64 mine, all;
};
LT_FN Member this_member() { return {threadIdx.x % 32, item_id() / 32, item_count() / 32}; }

LT_FN u32 ballot(bool plus) { return __ballot_sync(kAllLanes, plus); }
template <class T>
LT_FN T from_lane(T x, u32 lane) {
  return __shfl_sync(kAllLanes, x, static_cast<int>(lane));
}
template <class T>
LT_FN T from_lane_above(T x, u32 distance) {
  return __shfl_down_sync(kAllLanes, x, distance);
}
template <class T>
LT_FN T from_lane_xor(T x, u32 mask) {
  return __shfl_xor_sync(kAllLanes, x, static_cast<int>(mask));
}
