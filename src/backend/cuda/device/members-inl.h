// The members that kernels of signs require of their target; for CUDA they are warps. Included in the namespace of a
// .cu file after target-inl.h.

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
