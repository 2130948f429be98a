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
LT_FN void atomic_or(u32* word, u32 x) { AtomicWord(*word).fetch_or(x); }
LT_FN void atomic_min(u32* word, u32 x) {
  const AtomicWord smallest(*word);
  if (x < smallest.load()) smallest.fetch_min(x);
}
