// Ballots of sub-groups of 32 work-items. Included in lowtide::sycl_device after the dialect.
#include "portable/sign.h"

// This work-item's place: `lane` of sub-group `mine` of `all`.
struct Member {
  sycl::sub_group group;
  u32 lane;
  i64 mine, all;
};
LT_FN Member this_member() {
  const auto here = this_item();
  const sycl::sub_group group = here.get_sub_group();
  const i64 in_group = group.get_group_linear_range();
  return {group, static_cast<u32>(group.get_local_linear_id()),
          in_group * static_cast<i64>(here.get_group(0)) + static_cast<i64>(group.get_group_linear_id()),
          in_group * static_cast<i64>(here.get_group_range(0))};
}

LT_FN u32 ballot(const sycl::sub_group& group, bool plus) {
  u32 word = 0;
  sycl::ext::oneapi::group_ballot(group, plus).extract_bits(word);
  return word;
}
