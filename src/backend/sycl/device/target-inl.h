// Provides what the kernels (backend/kernels) require of their target, here SYCL: a work-item's identity and
// cooperation. Included in lowtide::sycl_device after the portable kernels.

// A tile is a single block; a group takes one block at a time.
inline constexpr i64 kBlocksOfTile = 1;

LT_FN sycl::nd_item<1> this_item() { return sycl::ext::oneapi::this_work_item::get_nd_item<1>(); }

LT_FN i64 group_id() { return static_cast<i64>(this_item().get_group(0)); }
LT_FN i64 group_count() { return static_cast<i64>(this_item().get_group_range(0)); }
LT_FN u32 id_in_group() { return static_cast<u32>(this_item().get_local_id(0)); }
LT_FN i64 item_id() { return static_cast<i64>(this_item().get_global_id(0)); }
LT_FN i64 item_count() { return static_cast<i64>(this_item().get_global_range(0)); }

// Returns the group's maximum to every work-item. Also a barrier: earlier reads are complete.
LT_FN u32 max_of_group(u32 x) { return sycl::reduce_over_group(this_item().get_group(), x, sycl::maximum<u32>()); }

// After this call, the group can read what its members wrote before it.
LT_FN void meet_in_group() { sycl::group_barrier(this_item().get_group()); }

using AtomicWord = sycl::atomic_ref<u32, sycl::memory_order::relaxed, sycl::memory_scope::device,
                                    sycl::access::address_space::global_space>;
// Returns the previous value.
LT_FN u32 atomic_add(u32* word, u32 x) { return AtomicWord(*word).fetch_add(x); }
LT_FN void atomic_or(u32* word, u32 x) { AtomicWord(*word).fetch_or(x); }
LT_FN void atomic_min(u32* word, u32 x) {
  const AtomicWord smallest(*word);
  if (x < smallest.load()) smallest.fetch_min(x);
}

// Members are 32 consecutive work-items of a group, whose ballot is a word of 32 signs; here sub-groups, in
// programs of LT_SYCL_SIGN_KERNELs only. This is a work-item's position: `lane` of the members `mine` of `all`.
struct Member {
  u32 lane;
  i64 mine, all;
};
LT_FN sycl::sub_group sub_group() { return this_item().get_sub_group(); }

LT_FN Member this_member() {
  const i64 in_group = sub_group().get_group_linear_range();
  return {static_cast<u32>(sub_group().get_local_linear_id()),
          in_group * group_id() + static_cast<i64>(sub_group().get_group_linear_id()), in_group * group_count()};
}

LT_FN u32 ballot(bool plus) {
  u32 word = 0;
  sycl::ext::oneapi::group_ballot(sub_group(), plus).extract_bits(word);
  return word;
}
template <class T>
LT_FN T from_lane(T x, u32 lane) {
  return sycl::select_from_group(sub_group(), x, lane);
}
template <class T>
LT_FN T from_lane_above(T x, u32 distance) {
  return sycl::shift_group_left(sub_group(), x, distance);
}
template <class T>
LT_FN T from_lane_xor(T x, u32 mask) {
  return sycl::permute_group_by_xor(sub_group(), x, mask);
}
