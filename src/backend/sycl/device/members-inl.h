// The members that kernels of signs require of their target; for SYCL they are sub-groups of 32 work-items. Included in
// lowtide::sycl_device after target-inl.h, only by kernels that have such sub-groups.

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
