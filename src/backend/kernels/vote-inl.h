// Majorities of packed signs, and their counters. Include in a namespace after words-inl.h and portable/sign.h.

using Rows = const u8* const*;  // one row per voter; rows of voters with weight 0 are not read

// Counts the votes on the signs of up to 4 bytes from byte `at`, `left` bytes before the end. kPlanes is 32, of which
// the vote uses `planes`, or a small number of planes, which stay in registers. Returns the number of planes.
template <int kPlanes>
LT_FN int count(u32 (&plane)[kPlanes], const DeviceVote& vote, Rows ballots, const u32* weights, i64 at, i64 left) {
  const auto row = [&](int v) { return load_bytes(ballots[v] + at, left); };
  if constexpr (kPlanes == 32) {
    count_votes(plane, vote.planes, weights, vote.voters, row);
    return vote.planes;
  } else {
    count_votes_in_registers<kPlanes>(plane, weights, vote.voters, row);
    return kPlanes;
  }
}
inline constexpr int kFewPlanes = 4;

template <int kPlanes>
LT_FN void vote_word(const DeviceVote& vote, Rows ballots, const u32* weights, Rows presences, i64 at, i64 left) {
  const Tie ties = static_cast<Tie>(vote.ties);
  u32 votes = vote.sum;
  if (vote.result_presence) {
    votes = 0;
    for (int v = 0; v < vote.voters; ++v)
      if (weights[v] && is_present(presences[v], at / 4)) votes += weights[v];
  }
  u32 plane[kPlanes];
  const int planes = count(plane, vote, ballots, weights, at, left);
  // Counts keep the order of the ballots' bits; ties and the end are in the order "little".
  const auto in_order = [&vote](u32 word) { return vote.big ? mirrored(word) : word; };
  Majority<u32> of = majority(plane, planes, votes);
  of = {in_order(of.plus), in_order(of.tie)};
  const u32 previous = ties == Tie::kPrevious ? in_order(load_bytes(vote.previous + at, left)) : 0u;
  const u32 result = break_ties(of, ties, vote.seed, vote.step, vote.first_index + 8 * static_cast<u64>(at), previous);
  const u32 kept = votes || !vote.result_presence ? inside_of(vote.count - 8 * at) : 0u;
  store_bytes(vote.result + at, left, in_order(result & kept));
  if (ties == Tie::kZero) store_bytes(vote.zeros + at, left, in_order(of.tie & kept));
}

// Calls work(i) for this work-item's share of `count`.
template <class Fn>
LT_FN void share(i64 count, Fn&& work) {
  for (i64 i = item_id(); i < count; i += item_count()) work(i);
}

// Each work-item votes on a word of 32 signs at a time.
LT_FN void vote_words(const DeviceVote* vote, Rows ballots, const u32* weights, Rows presences) {
  const DeviceVote mine = *vote;
  const i64 bytes = (mine.count + 7) / 8;
  // Whole words first, if there are at most 15 votes; then the rest.
  const i64 few = mine.planes <= kFewPlanes ? bytes / 4 : 0;
  share(few, [&](i64 w) { vote_word<kFewPlanes>(mine, ballots, weights, presences, 4 * w, 4); });
  share((bytes + 3) / 4 - few, [&](i64 i) {
    const i64 at = 4 * (few + i);
    vote_word<32>(mine, ballots, weights, presences, at, bytes - at);
  });
}

// Writes the result's presence, a byte at a time, after the vote, because it may overwrite a voter's.
LT_FN void vote_presence_bytes(const DeviceVote* vote, const u32* weights, Rows presences) {
  const DeviceVote mine = *vote;
  const i64 blocks = (mine.count + 32 * kWordsOfBlock - 1) / (32 * kWordsOfBlock);
  share((blocks + 7) / 8, [&](i64 at) {
    u32 any = 0;
    for (int v = 0; v < mine.voters; ++v)
      if (weights[v]) any |= presences[v][at];
    mine.result_presence[at] = static_cast<u8>(any & inside_of(blocks - 8 * at));
  });
}

template <int kPlanes>
LT_FN void count_word(const DeviceVote& vote, Rows ballots, const u32* weights, u8* const* planes, i64 at, i64 left) {
  u32 plane[kPlanes];
  count(plane, vote, ballots, weights, at, left);
  for (int j = 0; j < kPlanes && j < vote.planes; ++j)
    store_bytes(planes[j] + at, left, plane[j] & inside_of(vote.count - 8 * at));
}

LT_FN void count_words(const DeviceVote* vote, Rows ballots, const u32* weights, u8* const* planes) {
  const DeviceVote mine = *vote;
  const i64 bytes = (mine.count + 7) / 8, few = mine.planes <= kFewPlanes ? bytes / 4 : 0;
  share(few, [&](i64 w) { count_word<kFewPlanes>(mine, ballots, weights, planes, 4 * w, 4); });
  share((bytes + 3) / 4 - few, [&](i64 i) {
    const i64 at = 4 * (few + i);
    count_word<32>(mine, ballots, weights, planes, at, bytes - at);
  });
}
