// Members are 32 consecutive work-items of a group, whose ballot is a word of 32 signs. Include in a target's namespace
// after portable/sign.h and before the target's own members-inl.h, which defines this_member, ballot and from_lane*.

// This work-item's position: `lane` of the members `mine` of `all`.
struct Member {
  u32 lane;
  i64 mine, all;
};
