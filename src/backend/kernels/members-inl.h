// Members of 32 work-items that follow one another in a group: a ballot of theirs is a word of 32 signs. Included in a
// target's namespace behind portable/sign.h and before the target's own members-inl.h, which brings this_member, ballot
// and from_lane*.

// This work-item's place: `lane` of the members `mine` of `all`.
struct Member {
  u32 lane;
  i64 mine, all;
};
